// SPDX-License-Identifier: Apache-2.0
#include "net/authentication.h"

#include <set>
#include <string>
#include <gtest/gtest.h>
#include "base/check.h"
#include "base/text.h"

namespace sherd::net {
namespace {

std::string hex_of(const MessageCode& code) {
  std::string text;
  for (const char byte : code) {
    text += hex(static_cast<unsigned char>(byte)).substr(14);
  }
  return text;
}

// Case 2 of RFC 4231.
TEST(Authentication, MakesTheCodesOfTheStandard) {
  EXPECT_EQ(
      hex_of(message_code("Jefe", "what do ya want for nothing?")),
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Authentication, TellsCodesApart) {
  const MessageCode code = message_code("key", "message");
  EXPECT_TRUE(same_code(code, message_code("key", "message")));
  EXPECT_FALSE(same_code(code, message_code("kez", "message")));
  EXPECT_FALSE(same_code(code, message_code("key", "messagf")));
  for (std::size_t i = 0; i < code.size(); ++i) {
    MessageCode other = code;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(same_code(code, other)) << i;
  }
}

TEST(Authentication, DrawsANewNumberEachTime) {
  std::set<std::uint64_t> drawn;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(drawn.insert(random_number()).second);
  }
  EXPECT_FALSE(drawn.contains(0));
}

}  // namespace
}  // namespace sherd::net
