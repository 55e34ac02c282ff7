// SPDX-License-Identifier: Apache-2.0
//
// The small parts that touch the system: descriptors, ports, finding programs.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fstream>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/descriptor.h"
#include "launch/launcher_under_test.h"
#include "launch/line_writer.h"
#include "launch/port.h"
#include "launch/program.h"
#include "support/scratch_folder.h"

namespace sherd::launch {
namespace {

using ::sherd::testing::ScratchFolder;
using ::testing::HasSubstr;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(Descriptor, MoveAssignmentClosesTheOldOne) {
  Descriptor a(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Descriptor b(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int old = a.get();
  const int kept = b.get();
  a = std::move(b);
  EXPECT_FALSE(is_open(old));
  EXPECT_TRUE(is_open(kept));
  EXPECT_EQ(a.get(), kept);
  a.close();
  EXPECT_FALSE(is_open(kept));
}

TEST(Port, OneThatIsListenedOnIsRefusedByName) {
  const OccupiedPort listener;
  const Status refused = check_port_free(listener.port());
  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      refused.message(),
      HasSubstr("port " + std::to_string(listener.port()) + " is in use"));
}

TEST(Port, ReservedOnesLieBelowTheEphemeralRange) {
  const auto reserved = reserve_port(1);
  ASSERT_TRUE(reserved.ok());
  EXPECT_GE(reserved.value().port, 20000);
  EXPECT_LE(reserved.value().port, 29999);
}

// Like two launchers that search in the same order at the same time.
TEST(Port, AReservedOneIsNobodyElsesUntilItIsGivenBack) {
  const auto seed = static_cast<std::uint64_t>(::getpid());
  // It is given back at once.
  const auto first = reserve_port(seed).value().port;
  auto held = reserve_port(seed).value();
  EXPECT_EQ(held.port, first);
  const auto other = reserve_port(seed);
  EXPECT_NE(other.value().port, first);
  held.held.close();
  EXPECT_EQ(reserve_port(seed).value().port, first);
}

TEST(Port, RankZeroCanListenOnAReservedOne) {
  const auto reserved = reserve_port(9);
  EXPECT_TRUE(check_port_free(reserved.value().port).ok());
  const OccupiedPort listener(reserved.value().port);
  EXPECT_EQ(listener.port(), reserved.value().port);
}

class FindProgram : public ::testing::Test {
 protected:
  std::string make(const std::string& name, mode_t mode) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n";
    ::chmod(path.c_str(), mode);
    return path;
  }
  ScratchFolder folder_;
};

TEST_F(FindProgram, SearchesPathForAPlainName) {
  const std::string path = make("tool", 0755);
  std::string found;
  EXPECT_TRUE(find_program("tool", "/nowhere:" + folder_.path(), &found).ok());
  EXPECT_EQ(found, path);
  EXPECT_TRUE(find_program(path, "", &found).ok());
  EXPECT_EQ(found, path);
}

TEST_F(FindProgram, NamesWhatIsMissing) {
  std::string none;
  const StartStatus absent = find_program("tool", folder_.path(), &none);
  EXPECT_EQ(absent.exit_status(), 127);
  EXPECT_THAT(absent.message(), HasSubstr("'tool'"));
  const std::string path = folder_.path() + "/absent";
  const StartStatus no_file = find_program(path, "", &none);
  EXPECT_EQ(no_file.exit_status(), 127);
  EXPECT_THAT(no_file.message(), HasSubstr(path));
}

TEST_F(FindProgram, TellsAFileThatCannotBeExecuted) {
  const std::string path = make("data", 0644);
  std::string none;
  const StartStatus by_path = find_program(path, "", &none);
  EXPECT_EQ(by_path.exit_status(), 126);
  EXPECT_THAT(by_path.message(), HasSubstr("not executable"));
  EXPECT_EQ(find_program("data", folder_.path(), &none).exit_status(), 126);
  EXPECT_EQ(find_program(folder_.path(), "", &none).exit_status(), 126);
}

TEST(SameFile, ComparesWhatDescriptorsLeadTo) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor in(ends[0]);
  const Descriptor out(ends[1]);
  const Descriptor copy(::dup(out.get()));
  const Descriptor other(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  EXPECT_TRUE(same_file(out.get(), copy.get()));
  EXPECT_FALSE(same_file(out.get(), other.get()));
  EXPECT_FALSE(same_file(out.get(), -1));
}

}  // namespace
}  // namespace sherd::launch
