// SPDX-License-Identifier: Apache-2.0
#include "net/channel.h"

#include <utility>
#include "net/asio_headers.h"
#include "net/host_address.h"
#include "net/tcp_socket.h"

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

}  // namespace

std::unique_ptr<Channel> make_channel(
    Tcp::socket socket,
    const ConnectionOptions& options,
    std::shared_ptr<TlsContext> tls,
    Side side) {
  set_peer_options(socket.native_handle(), options.user_timeout);
  if (tls != nullptr) {
    return make_tls_channel(std::move(socket), std::move(tls), side);
  }
  return std::make_unique<PlainChannel>(std::move(socket));
}

std::string text_of(const Tcp::endpoint& endpoint) {
  return HostAddress{endpoint.address().to_string(), endpoint.port()}.text();
}

}  // namespace sherd::net
