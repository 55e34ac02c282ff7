// SPDX-License-Identifier: Apache-2.0
#include "net/channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <algorithm>
#include <chrono>
#include <utility>
#include "base/check.h"
#include "net/asio_headers.h"
#include "net/host_address.h"

namespace sherd::net {
namespace {

class PlainChannel final : public Channel {
 public:
  explicit PlainChannel(Tcp::socket socket) : socket_(std::move(socket)) {}

  void handshake(Done done) override {
    asio::post(
        socket_.get_executor(), [done = std::move(done)] { done({}, 0); });
  }
  void read_some(std::span<char> into, Done done) override {
    socket_.async_read_some(
        asio::buffer(into.data(), into.size()), std::move(done));
  }
  void write(std::string_view all, Done done) override {
    asio::async_write(
        socket_, asio::buffer(all.data(), all.size()), std::move(done));
  }
  void end_writing() override {
    std::error_code ignored;  // Reading will fail too.
    socket_.shutdown(Tcp::socket::shutdown_send, ignored);
  }
  void close() override {
    std::error_code ignored;
    socket_.close(ignored);
  }
  Status failure(const std::error_code& error) const override {
    if (error == asio::error::eof) {
      return {ErrorCode::kPeerLost, "the peer closed it"};
    }
    return {ErrorCode::kPeerLost, error.message()};
  }

 private:
  Tcp::socket socket_;
};

int seconds_of(Duration time) {
  const auto whole = std::chrono::ceil<std::chrono::seconds>(time).count();
  return static_cast<int>(std::max<std::int64_t>(1, whole));
}

void set_option(int socket, int level, int name, int value) {
  // Linux has had these options for long, so only a mistake of sherd's can fail.
  const int result = ::setsockopt(socket, level, name, &value, sizeof value);
  SHERD_ASSERT(result == 0, "socket option ", name, " = ", value);
}

void set_options(int socket, const ConnectionOptions& options) {
  const auto user_timeout_ms =
      std::chrono::ceil<std::chrono::milliseconds>(options.user_timeout);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(
      socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(user_timeout_ms.count()));
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(
      socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds_of(options.keep_alive_idle));
  set_option(
      socket, IPPROTO_TCP, TCP_KEEPINTVL,
      seconds_of(options.keep_alive_interval));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, options.keep_alive_probes);
}

}  // namespace

std::unique_ptr<Channel> make_channel(
    Tcp::socket socket,
    const ConnectionOptions& options,
    std::shared_ptr<TlsContext> tls,
    Side side) {
  set_options(socket.native_handle(), options);
  if (tls != nullptr) {
    return make_tls_channel(std::move(socket), std::move(tls), side);
  }
  return std::make_unique<PlainChannel>(std::move(socket));
}

std::string text_of(const Tcp::endpoint& endpoint) {
  return HostAddress{endpoint.address().to_string(), endpoint.port()}.text();
}

}  // namespace sherd::net
