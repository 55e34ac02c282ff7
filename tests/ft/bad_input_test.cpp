// SPDX-License-Identifier: Apache-2.0
//
// Input from strangers, from a replica of another model, and from a full disk is refused with a
// reason, and nothing is lost.
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "ft/cluster.h"
#include "ft/protocol/messages.h"
#include "ft/ring/frame.h"
#include "ft/wire/codec.h"
#include "ft/wire/messages_testing.h"
#include "net/frame.h"
#include "net/net_testing.h"
#include "net/security.h"
#include "support/scratch_folder.h"

namespace sherd::ft::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Descriptor dial(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  SHERD_CHECK(
      ::connect(
          socket.get(), reinterpret_cast<const sockaddr*>(&address),
          sizeof address) == 0,
      "[test] expected a listener at port ", port);
  return socket;
}

std::string random_bytes(std::mt19937& random, std::size_t count) {
  std::string bytes(count, '\0');
  for (auto& byte : bytes) {
    byte = static_cast<char>(random());
  }
  return bytes;
}

// Valid messages except for one fault.
std::vector<std::string> strange_words(std::mt19937& random) {
  std::string greeting =
      net::frame_bytes({.type = 0xffff, .payload = "dialled"});
  std::string version = greeting;
  version[4] = 9;
  std::string length = greeting;
  length[15] = '\x7f';
  // From an unknown sender, and of an incarnation that never existed.
  Report report;
  report.replica = 4000000000U;
  report.incarnation = 77;
  report.config = 5;
  Report ghost = report;
  ghost.replica = 1;
  ghost.run = 12345;
  const auto said = [](const Report& one) {
    return net::frame_bytes(
        {.type = static_cast<std::uint16_t>(FrameType::kReport),
         .payload = bytes_of(one)});
  };
  std::string hello = ring::frame_of(Epoch{1, 1}, ring::Handshake());
  std::string other_ring = hello;
  other_ring[4] = 9;
  return {
      "",
      "GET / HTTP/1.1\r\n\r\n",
      random_bytes(random, 5000),
      greeting.substr(0, 10),
      version,
      length,
      greeting + greeting,
      greeting + random_bytes(random, 500),
      greeting + said(report) + said(ghost),
      greeting + said(ghost),
      hello,
      hello + hello,
      other_ring,
      hello.substr(0, ring::kHeaderBytes) + random_bytes(random, 100)};
}

TEST(FaultsStrangers, F40WordsOnEveryListenerDisturbNobody) {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::fflush(stdout);
  std::mt19937 random(seed);
  ClusterOptions options;
  options.ranks = 2;
  options.steps = 60;
  Cluster cluster(options);
  std::vector<Descriptor> open;  // Some connections stay open.
  cluster.when_held(10, [&] {
    for (const int port : cluster.ports()) {
      for (const auto& words : strange_words(random)) {
        auto socket = dial(port);
        // The connection may already have been closed.
        (void)::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL);
        if (random() % 2 == 0) {
          open.push_back(std::move(socket));
        }
      }
    }
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = kGap,
       .says = {"expected a replica below 4096, found 4000000000"}});
  EXPECT_EQ(outcome.epochs(), 1);
}

// They know everything that a member says, except the secret.
TEST(FaultsStrangers, F51WithASecretTheyAreRefusedOnEveryPortAndDisturbNobody) {
  std::mt19937 random(51);
  const sherd::testing::ScratchFolder folder;
  ClusterOptions options;
  options.ranks = 2;
  options.steps = 60;
  options.coordinator.secret_file =
      folder.file("secret", "what all replicas know");
  Cluster cluster(options);
  std::vector<Descriptor> open;
  cluster.when_held(10, [&] {
    net::Loop loop;
    for (const int port : cluster.ports()) {
      for (const auto& words : strange_words(random)) {
        open.push_back(dial(port));
        (void)::send(
            open.back().get(), words.data(), words.size(), MSG_NOSIGNAL);
      }
      for (const auto& other :
           {net::Security(), net::shared_secret("what nobody else knows")}) {
        net::testing::TestEndpoint end;
        EXPECT_NE(
            net::testing::dial(
                loop, {"127.0.0.1", static_cast<std::uint16_t>(port)}, end,
                {.security = other}),
            "")
            << "port " << port;
      }
    }
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = kGap,
       .says = {"the peer has no secret or certificate"}});
  EXPECT_EQ(outcome.epochs(), 1);
}

TEST(FaultsStrangers, F50OneOfAnotherShapeEndsWithAReasonAndDisturbsNobody) {
  Cluster cluster({.steps = 60});
  cluster.when_held(10, [&] {
    cluster.set_buckets({1500, 2500});
    cluster.start(3);
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kGap});
  const auto* stranger = outcome.lives_of(3).front();
  EXPECT_FALSE(outcome.committed_with(3, stranger->incarnation));
  EXPECT_THAT(stranger->failure, HasSubstr(" bytes, found "));
  EXPECT_FALSE(stranger->done);
}

// A file system of one megabyte.
class SmallDisk {
 public:
  SmallDisk()
      : path_(
            std::filesystem::temp_directory_path() /
            ("sherd_disk_" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
    is_there_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  ~SmallDisk() {
    if (is_there_) {
      ::umount2(path_.c_str(), MNT_DETACH);
    }
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool is_there() const { return is_there_; }
  std::string path() const { return path_.string(); }
  void fill() const {
    std::ofstream file(path_ / "full", std::ios::binary);
    const std::string block(4096, 'x');
    while (file.write(block.data(), 4096) && file.flush()) {
    }
  }
  void make_room() const { std::filesystem::remove(path_ / "full"); }

 private:
  const std::filesystem::path path_;
  bool is_there_ = false;
};

TEST(FaultsSmallDisk, F27NothingIsCommittedThatIsNotWrittenAndNothingIsLost) {
  const SmallDisk disk;
  if (!disk.is_there()) {
    GTEST_SKIP() << "only root can mount a small disk";
  }
  ClusterOptions options;
  options.steps = 60;
  options.log_folder = disk.path();
  Cluster cluster(options);
  std::int64_t held = 0;
  // Earlier messages may still be under way, until no step was held for a second.
  std::function<void()> look = [&] {
    if (held < cluster.last_held()) {
      held = cluster.last_held();
      cluster.after(milliseconds(1000), look);
      return;
    }
    cluster.after(milliseconds(1000), [&] {
      EXPECT_EQ(cluster.last_held(), held);
      disk.make_room();
    });
  };
  cluster.when_held(10, [&] {
    disk.fill();
    look();
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = milliseconds(3000 + 5000),
       .says = {"full"}});
  EXPECT_LT(held, 60);
  EXPECT_GE(outcome.history().term, 2U);
}

}  // namespace
}  // namespace sherd::ft::test
