// SPDX-License-Identifier: Apache-2.0
//
// Channel is a byte stream over one socket, plain or TLS; Connection adds frames. Thread rule: its
// loop.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <system_error>
#include "base/status.h"
#include "net/security.h"

namespace sherd::net {

enum class Side { kAccepted, kDialled };

class Channel {
 public:
  using Done = std::function<void(const std::error_code&, std::size_t)>;

  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Each calls `done` exactly once, later, from the loop, even if the channel is closed meanwhile.
  // Only one operation of each kind may be under way. Buffers must stay until `done`, and the
  // channel outlives the operations that it has begun.
  virtual void handshake(Done done) = 0;
  virtual void read_some(std::span<char> into, Done done) = 0;
  virtual void write(std::string_view all, Done done) = 0;

  // Shuts down the writing half: the peer sees the end of what was written, and may still write.
  virtual void end_writing() = 0;
  // Closes both halves; anything not written yet is lost.
  virtual void close() = 0;

  // The meaning of an error, as a sentence without the peer's name.
  virtual Status failure(const std::error_code& error) const = 0;

 protected:
  Channel() = default;
};

// Keys and certificates, read once for many channels; null without security. Throws Error that
// names the file if one is unusable.
struct TlsContext;
std::shared_ptr<TlsContext> make_tls_context(const Security& security);

}  // namespace sherd::net
