// SPDX-License-Identifier: Apache-2.0
#include "net/security.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include "base/check.h"
#include "net/asio_headers.h"

namespace sherd::net {
namespace {
constexpr std::size_t kSecretBytesMax = 4096;
}  // namespace

const char* name_of(PeerRole role) {
  return role == PeerRole::kCoordinator ? "sherd-coordinator" : "sherd-replica";
}

Security shared_secret(std::string secret) {
  SHERD_CHECK(
      secret.size() >= kSecretBytesMin, "[net] expected a secret of at least ",
      kSecretBytesMin, " bytes, found ", secret.size(),
      "; one is made by: openssl rand -hex 32");
  Security security;
  security.kind = Security::Kind::kSharedSecret;
  security.secret = std::move(secret);
  return security;
}

Security read_shared_secret(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  SHERD_CHECK(
      file.is_open(), "[net] expected a file with the secret at ", path,
      ", found: ", std::strerror(errno));
  // One byte more tells whether the file ends there.
  std::string secret(kSecretBytesMax + 1, '\0');
  file.read(secret.data(), std::ssize(secret));
  secret.resize(static_cast<std::size_t>(file.gcount()));
  SHERD_CHECK(
      !file.bad() && file.eof(), "[net] expected a file with the secret at ",
      path, ", found one that cannot be read or is longer than ",
      kSecretBytesMax, " bytes");
  while (secret.ends_with('\n') || secret.ends_with('\r')) {
    secret.pop_back();
  }
  SHERD_CHECK(
      secret.size() >= kSecretBytesMin, "[net] expected a secret of at least ",
      kSecretBytesMin, " bytes in ", path, ", found ", secret.size());
  return shared_secret(std::move(secret));
}

Security security_of(const std::string& secret_file, const TlsFiles& files) {
  const bool certified = !files.certificate.empty() || !files.key.empty() ||
      !files.authority.empty();
  SHERD_CHECK(
      !certified || secret_file.empty(),
      "[net] expected a secret or certificates, found both");
  if (!secret_file.empty()) {
    return read_shared_secret(secret_file);
  }
  return certified ? mutual_tls(files) : Security();
}

Security mutual_tls(TlsFiles files) {
  SHERD_CHECK(
      !files.certificate.empty() && !files.key.empty() &&
          !files.authority.empty(),
      "[net] expected files of a certificate, its key and the authority, found "
      "certificate \"",
      files.certificate, "\", key \"", files.key, "\", authority \"",
      files.authority, "\"");
  Security security;
  security.kind = Security::Kind::kMutualTls;
  security.files = std::move(files);
  return security;
}

bool is_loopback(const std::string& ip) {
  std::error_code error;
  const auto address = asio::ip::make_address(ip, error);
  if (error) {
    return false;
  }
  // ::ffff:127.0.0.1 is an IPv4 address.
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6())
        .is_loopback();
  }
  return address.is_loopback();
}

void check_security(const Security& security, const std::string& ip) {
  SHERD_CHECK(
      security.kind != Security::Kind::kNone || is_loopback(ip),
      "[net] expected a shared secret or certificates (mutual TLS) for ", ip,
      ", which is not of this host alone, found neither; without them only "
      "127.0.0.0/8 and ::1 are allowed");
}

}  // namespace sherd::net
