// SPDX-License-Identifier: Apache-2.0
//
// Security says how the two sides of a connection authenticate each other. With a shared secret or
// certificates, both sides prove what they have, and TLS 1.3 encrypts everything that follows.
// Without either, anyone who reaches the port is trusted, which is allowed only within one host.
// Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <string>

namespace sherd::net {

struct TlsFiles {  // In PEM format.
  std::string certificate;
  std::string key;
  // A certificate that it signed is accepted if it names the role of the peer.
  std::string authority;
};

// Who is at the other end. A certificate contains the name of its owner's role as a DNS name or, if
// it has no DNS names, as its common name.
enum class PeerRole {
  kReplica,      // "sherd-replica"
  kCoordinator,  // "sherd-coordinator"
};
const char* name_of(PeerRole role);

struct Security {
  enum class Kind {
    kNone,
    kSharedSecret,  // The same bytes on both sides.
    kMutualTls,     // Each side has a certificate of the same authority.
  };
  Kind kind = Kind::kNone;
  // Used with certificates: that of a replica is not accepted for the coordinator, nor the other
  // way round.
  PeerRole peer = PeerRole::kReplica;
  std::string secret;
  TlsFiles files;
};

constexpr std::size_t kSecretBytesMin = 16;

// Throws Error for a secret that is shorter than kSecretBytesMin.
Security shared_secret(std::string secret);
// Uses the file's bytes without trailing line ends. Also throws Error for a file that cannot be
// read.
Security read_shared_secret(const std::string& path);
// The files are read by listen() and by Connector, and again for the first connection that a
// listener accepts after they have changed.
Security mutual_tls(TlsFiles files);

// For users' options: the file of a secret, or all three files of certificates, or neither. Throws
// Error for other combinations, and like read_shared_secret().
Security security_of(const std::string& secret_file, const TlsFiles& files);

// Takes an IP address without port; loopback is 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& ip);

// Throws Error, naming the address and the remedy, unless there is security or the address is a
// loopback address.
void check_security(const Security& security, const std::string& ip);

}  // namespace sherd::net
