// SPDX-License-Identifier: Apache-2.0
#include "net/host_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "net/security.h"
#include "support/error_of.h"

namespace sherd::net {
namespace {

using test::error_of;
using ::testing::HasSubstr;

TEST(HostAddress, IsWrittenAsItWasRead) {
  for (const char* text :
       {"127.0.0.1:0", "node-7.cluster:4300", "[::1]:80", "[fe80::1%eth0]:9",
        "h:65535"}) {
    EXPECT_EQ(parse_host_address(text).text(), text);
  }
  EXPECT_EQ(parse_host_address("[::1]:80"), (HostAddress{"::1", 80}));
}

TEST(HostAddress, RefusesWhatIsNone) {
  for (const char* text :
       {"", ":", ":80", "host", "host:", "host:-1", "host:65536", "host:80x",
        "host: 80", "host:99999999999999999999", "::1:80", "[::1:80", "[::1]80",
        "[::1]", "[]:80", "[host]:80", "::1]:80", "a b:80", "http://h:80"}) {
    EXPECT_THAT(
        error_of([&] { (void)parse_host_address(text); }),
        HasSubstr("[net] expected host:port"))
        << text;
  }
}

TEST(HostAddress, SaysWhatIsWrong) {
  EXPECT_THAT(
      error_of([] { (void)parse_host_address("node7:70000"); }),
      HasSubstr("found \"node7:70000\", whose port \"70000\" is no number"));
  EXPECT_THAT(
      error_of([] { (void)parse_host_address("fe80::1"); }),
      HasSubstr("wants brackets"));
}

TEST(IpRoute, ToThisHostHasEqualEnds) {
  EXPECT_EQ(route_to("127.0.0.1"), (IpRoute{"127.0.0.1", "127.0.0.1"}));
  const auto by_name = route_to("localhost");
  EXPECT_TRUE(is_loopback(by_name.from)) << by_name.from;
  EXPECT_EQ(by_name.from, by_name.to);
}

TEST(IpRoute, ToNowhereIsEmpty) {
  for (const char* host : {"", "no such name"}) {
    EXPECT_EQ(route_to(host), IpRoute()) << host;
  }
}

}  // namespace
}  // namespace sherd::net
