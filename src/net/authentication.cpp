// SPDX-License-Identifier: Apache-2.0
#include "net/authentication.h"

#include <sys/random.h>
#include <cerrno>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include "base/check.h"

namespace sherd::net {

std::uint64_t random_number() {
  std::uint64_t number = 0;
  while (number == 0) {
    const auto got = ::getrandom(&number, sizeof number, 0);
    SHERD_ASSERT(
        got == sizeof number || (got < 0 && errno == EINTR),
        "getrandom never fails");
  }
  return number;
}

MessageCode message_code(std::string_view key, std::string_view message) {
  MessageCode code = {};
  unsigned bytes = 0;
  const auto* made = ::HMAC(
      EVP_sha256(), key.data(), static_cast<int>(key.size()),
      reinterpret_cast<const unsigned char*>(message.data()), message.size(),
      reinterpret_cast<unsigned char*>(code.data()), &bytes);
  SHERD_ASSERT(made != nullptr && bytes == code.size(), "HMAC failed");
  return code;
}

bool same_code(const MessageCode& one, const MessageCode& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace sherd::net
