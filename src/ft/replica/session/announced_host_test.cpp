// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/announced_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

const net::HostAddress kCoordinator{"10.0.0.1", 4300};
const net::IpRoute kHere{"127.0.0.1", "127.0.0.1"};
const net::IpRoute kElsewhere{"10.0.0.2", "10.0.0.1"};

TEST(AnnouncedHost, IsTheAddressTowardsTheCoordinatorIfNoneIsGiven) {
  EXPECT_EQ(announced_host("", kCoordinator, kHere), "127.0.0.1");
  EXPECT_EQ(announced_host("", kCoordinator, kElsewhere), "10.0.0.2");
}

TEST(AnnouncedHost, IsTheOneThatIsGiven) {
  for (const auto& route : {kHere, kElsewhere, net::IpRoute()}) {
    EXPECT_EQ(announced_host("10.0.0.7", kCoordinator, route), "10.0.0.7");
  }
}

// The coordinator has an address that other hosts reach, and all replicas are on its host.
TEST(AnnouncedHost, MayBeLoopbackBesideACoordinatorOnTheSameHost) {
  const net::IpRoute own{"10.0.0.1", "10.0.0.1"};
  const net::IpRoute own_name{"127.0.0.1", "127.0.1.1"};
  for (const auto& route : {kHere, own, own_name, net::IpRoute()}) {
    EXPECT_EQ(announced_host("127.0.0.1", kCoordinator, route), "127.0.0.1");
  }
}

TEST(AnnouncedHost, IsNotLoopbackBesideACoordinatorElsewhere) {
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    EXPECT_THAT(
        error_of([&] { announced_host(host, kCoordinator, kElsewhere); }),
        AllOf(
            HasSubstr("SHERD_HOST: expected the address at which other"),
            HasSubstr("the coordinator is at 10.0.0.1:4300, on another host"),
            HasSubstr(host)));
  }
  // It stands for a name, such as a host's own one on Debian, and is looked up like one.
  EXPECT_THAT(
      error_of([&] { announced_host("127.0.1", kCoordinator, kElsewhere); }),
      HasSubstr("found \"127.0.1\", which is 127.0.0.1 on this host: only"));
}

TEST(AnnouncedHost, IsAskedForIfTheCoordinatorCannotBeFound) {
  EXPECT_THAT(
      error_of([&] { announced_host("", kCoordinator, {}); }),
      AllOf(HasSubstr("SHERD_HOST"), HasSubstr("found it unset")));
}

}  // namespace
}  // namespace sherd::ft
