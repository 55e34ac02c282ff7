// SPDX-License-Identifier: Apache-2.0
//
// TlsContext holds what TLS needs of files and secrets. OpenSSL's own settings
// are all here: version 1.3 alone, no tickets and no sessions that come back.
// Thread rule: one thread.
#pragma once

#include <memory>
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
  std::string key;             // Made of the secret.
  asio::ssl::context context;  // Points back here.
};

}  // namespace sherd::net
