// SPDX-License-Identifier: Apache-2.0
#include "launch/output_forwarder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <string>
#include <thread>
#include <utility>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/descriptor.h"

namespace sherd::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

TEST(LineSplitter, GivesTheSameLinesHoweverTheBytesArrive) {
  const std::string text = "one\n\ntwo\r\n10%\r20%\r\nend";
  const Strings expected = {"one", "", "two", "10%", "20%", "end"};
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    LineSplitter splitter;
    Strings lines;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      for (const auto& line : splitter.add(text.substr(at, piece))) {
        lines.push_back(line);
      }
    }
    for (const auto& line : splitter.finish()) {
      lines.push_back(line);
    }
    EXPECT_EQ(lines, expected) << "in pieces of " << piece;
  }
}

TEST(LineSplitter, KeepsALineUntilItEnds) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.add("ab"), IsEmpty());
  EXPECT_THAT(splitter.add("c\nd"), ElementsAre("abc"));
  EXPECT_THAT(splitter.finish(), ElementsAre("d"));
  EXPECT_THAT(splitter.finish(), IsEmpty());
}

TEST(LineSplitter, CutsLinesThatNeverEnd) {
  LineSplitter splitter;
  const std::size_t most = LineSplitter::kLineBytesMax;
  const Strings lines = splitter.add(std::string(2 * most + 5, 'x'));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].size(), most);
  EXPECT_EQ(lines[1].size(), most);
  EXPECT_THAT(splitter.finish(), ElementsAre("xxxxx"));
}

TEST(OutputTail, KeepsTheLastTwentyAndCutsLongOnes) {
  OutputTail last;
  for (int i = 0; i < 50; ++i) {
    last.add(std::to_string(i));
  }
  ASSERT_EQ(last.lines().size(), OutputTail::kCount);
  EXPECT_EQ(last.lines().front(), "30");
  EXPECT_EQ(last.lines().back(), "49");
  last.add(std::string(5000, 'x'));
  EXPECT_LT(last.lines().back().size(), 1010U);
}

// A rank may have left a process behind that writes as fast as it can.
TEST(OutputForwarder, DrainsWhatThePipeHeldAndNotWhatComesMeanwhile) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  Descriptor in(ends[0]);
  Descriptor out(ends[1]);
  std::string page;
  while (page.size() < 4096) {
    page += "y\n";
  }
  off_t held = 0;
  while (::write(out.get(), page.data(), page.size()) > 0) {
    held += static_cast<off_t>(page.size());
  }
  ::fcntl(out.get(), F_SETFL, 0);
  std::thread writer([&] {  // It waits until the pipe is read.
    for (int i = 0; i < 4096; ++i) {
      EXPECT_EQ(::write(out.get(), page.data(), page.size()), 4096);
    }
    out.close();
  });
  const Descriptor rest(::dup(in.get()));
  const Descriptor shown(::memfd_create("shown", MFD_CLOEXEC));
  LineWriter lines(shown.get());
  OutputTail last;
  OutputForwarder forwarder(std::move(in), "", &lines, &last);
  forwarder.drain();
  while (lines.pending()) {
    lines.write_some();
  }
  EXPECT_EQ(::lseek(shown.get(), 0, SEEK_END), held);
  ::fcntl(rest.get(), F_SETFL, 0);
  std::string dropped(page.size(), '\0');
  while (::read(rest.get(), dropped.data(), dropped.size()) > 0) {
  }
  writer.join();
}

}  // namespace
}  // namespace sherd::launch
