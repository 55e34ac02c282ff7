// SPDX-License-Identifier: Apache-2.0
#include "net/channel.h"

#include <utility>
#include <asio/ssl/stream.hpp>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include "base/check.h"
#include "net/asio_headers.h"
#include "net/host_address.h"
#include "net/tcp_socket.h"
#include "net/tls_context.h"

namespace sherd::net {
namespace {

// What a socket and TLS over one have in common.
template <typename Stream>
class StreamChannel : public Channel {
 public:
  // `more` follows the socket in the arguments of the stream; `tls` is null without TLS.
  template <typename... More>
  StreamChannel(
      Tcp::socket socket, std::shared_ptr<TlsContext> tls, More&... more)
      : tls_(std::move(tls)), stream_(std::move(socket), more...) {}

  void read_some(std::span<char> into, Done done) override {
    stream_.async_read_some(
        asio::buffer(into.data(), into.size()), std::move(done));
  }
  void write(std::string_view all, Done done) override {
    asio::async_write(
        stream_, asio::buffer(all.data(), all.size()), std::move(done));
  }
  void end_writing() override {
    std::error_code ignored;  // Reading will fail too.
    stream_.lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
  }
  void close() override {
    std::error_code ignored;
    stream_.lowest_layer().close(ignored);
  }

 protected:
  const std::shared_ptr<TlsContext> tls_;  // Outlives the stream.
  Stream stream_;
};

class PlainChannel final : public StreamChannel<Tcp::socket> {
 public:
  explicit PlainChannel(Tcp::socket socket)
      : StreamChannel(std::move(socket), nullptr) {}

  void handshake(Done done) override {
    asio::post(
        stream_.get_executor(), [done = std::move(done)] { done({}, 0); });
  }
  Status failure(const std::error_code& error) const override {
    if (error == asio::error::eof) {
      return {ErrorCode::kPeerLost, "the peer closed it"};
    }
    return {ErrorCode::kPeerLost, error.message()};
  }
};

class TlsChannel final : public StreamChannel<asio::ssl::stream<Tcp::socket>> {
 public:
  TlsChannel(
      Tcp::socket socket, const std::shared_ptr<TlsContext>& tls, Side side)
      : StreamChannel(std::move(socket), tls, tls->context), side_(side) {}

  void handshake(Done done) override {
    const auto type = side_ == Side::kAccepted ? asio::ssl::stream_base::server
                                               : asio::ssl::stream_base::client;
    stream_.async_handshake(
        type, [this, done = std::move(done)](const std::error_code& error) {
          if (!error && !peer_is_known()) {
            done(std::make_error_code(std::errc::permission_denied), 0);
            return;
          }
          agreed_ = !error;
          done(error, 0);
        });
  }
  Status failure(const std::error_code& error) const override;

 private:
  // OpenSSL has checked the secret or the authority, but no name.
  bool peer_is_known() {
    SSL* ssl = stream_.native_handle();
    if (tls_->kind == Security::Kind::kSharedSecret) {
      return SSL_session_reused(ssl) == 1;
    }
    X509* certificate = SSL_get0_peer_certificate(ssl);
    return certificate != nullptr &&
        X509_check_host(
            certificate, name_of(tls_->peer), 0, X509_CHECK_FLAG_NO_WILDCARDS,
            nullptr) == 1;
  }

  const Side side_;
  bool agreed_ = false;  // The handshake has succeeded.
};

// Whether the peer's first bytes are not TLS at all.
bool is_no_tls(int reason) {
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
      reason == SSL_R_HTTPS_PROXY_REQUEST || reason == SSL_R_RECORD_TOO_SMALL ||
      reason == SSL_R_BAD_RECORD_TYPE;
}

// Anything that this side finds wrong after the handshake. The peer's findings arrive as alerts,
// even if it refuses a certificate only then.
bool is_damage(int reason, bool agreed) {
  return reason == SSL_R_SSLV3_ALERT_BAD_RECORD_MAC ||
      (agreed && reason < SSL_AD_REASON_OFFSET);
}

Status TlsChannel::failure(const std::error_code& error) const {
  const bool end =
      error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  if (end && !agreed_) {
    return {
        ErrorCode::kPeerMismatch,
        "the peer closed it before TLS was agreed on: one side may have no "
        "secret or certificate"};
  }
  if (end) {
    return {ErrorCode::kPeerLost, "the peer closed it"};
  }
  if (error == std::errc::permission_denied && !agreed_) {
    return {
        ErrorCode::kPeerMismatch,
        str("expected a certificate with the name ", name_of(tls_->peer),
            ", found none that has it")};
  }
  if (error.category() != asio::error::get_ssl_category()) {
    return {ErrorCode::kPeerLost, error.message()};
  }
  const auto code = static_cast<unsigned long>(error.value());
  const char* text = ERR_reason_error_string(code);
  const std::string reason = text != nullptr ? text : error.message();
  if (is_no_tls(ERR_GET_REASON(code))) {
    return {
        ErrorCode::kPeerMismatch,
        str("expected TLS, found other bytes (", reason,
            "): the peer has no secret or certificate")};
  }
  if (is_damage(ERR_GET_REASON(code), agreed_)) {
    return {
        ErrorCode::kPeerMismatch, str("its bytes are damaged (", reason, ")")};
  }
  return {
      ErrorCode::kPeerMismatch,
      str("expected ",
          tls_->kind == Security::Kind::kSharedSecret
              ? "the same secret"
              : "certificates of the same authority",
          " on both sides, found: ", reason)};
}

}  // namespace

std::unique_ptr<Channel> make_channel(
    Tcp::socket socket,
    const ConnectionOptions& options,
    const std::shared_ptr<TlsContext>& tls,
    Side side) {
  set_peer_options(socket.native_handle(), options.user_timeout);
  if (tls != nullptr) {
    return std::make_unique<TlsChannel>(std::move(socket), tls, side);
  }
  return std::make_unique<PlainChannel>(std::move(socket));
}

std::string text_of(const Tcp::endpoint& endpoint) {
  return HostAddress{endpoint.address().to_string(), endpoint.port()}.text();
}

}  // namespace sherd::net
