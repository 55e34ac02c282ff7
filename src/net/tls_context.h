// SPDX-License-Identifier: Apache-2.0
//
// TlsContext holds OpenSSL's context and the key made of the secret. It fixes OpenSSL's settings:
// TLS 1.3 only, no tickets and no session resumption. Thread rule: one thread.
#pragma once

#include <string>
#include <asio/ssl/context.hpp>
#include "net/channel.h"
#include "net/security.h"

namespace sherd::net {

struct TlsContext {
  TlsContext() : context(asio::ssl::context::tls) {}
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  Security::Kind kind = Security::Kind::kNone;
  PeerRole peer = PeerRole::kReplica;
  std::string key;             // Derived from the secret.
  asio::ssl::context context;  // Points back to this object.
};

}  // namespace sherd::net
