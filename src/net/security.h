// SPDX-License-Identifier: Apache-2.0
//
// Security says how two sides of a connection know each other. With a secret or
// certificates both prove what they have, and all that follows is encrypted, by
// TLS 1.3; without, whoever reaches the port is believed, which is allowed within
// one host only. Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <string>

namespace sherd::net {

struct TlsFiles {  // PEM.
  std::string certificate;
  std::string key;
  // Whoever has a certificate that it signed is believed, whatever its name.
  std::string authority;
};

struct Security {
  enum class Kind {
    kNone,
    kSharedSecret,  // The same bytes on both sides.
    kMutualTls,     // Each side has a certificate of the same authority.
  };
  Kind kind = Kind::kNone;
  std::string secret;
  TlsFiles files;
};

constexpr std::size_t kSecretBytesMin = 16;

// Throws Error for a secret that is shorter than kSecretBytesMin.
Security shared_secret(std::string secret);
// The file's bytes without line ends behind them. Throws Error also for a file
// that cannot be read.
Security read_shared_secret(const std::string& path);
// The files are read when somebody listens or dials.
Security mutual_tls(TlsFiles files);

// What a user gives: the file of a secret, or all three of certificates, or none
// of them. Throws Error for others, and as read_shared_secret().
Security security_of(const std::string& secret_file, const TlsFiles& files);

// Of an IP address, without port: 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& ip);

// Throws Error naming the address and what to give, unless there is security or
// the address is of this host alone.
void check_security(const Security& security, const std::string& ip);

}  // namespace sherd::net
