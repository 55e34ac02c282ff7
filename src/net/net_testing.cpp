// SPDX-License-Identifier: Apache-2.0
#include "net/net_testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>
#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include "base/check.h"
#include "net/connection.h"

namespace sherd::net::testing {

using namespace std::chrono_literals;

bool run_until(
    Loop& loop, const std::function<bool()>& predicate, Duration limit) {
  const Instant until = loop.now() + limit;
  bool holds = false;
  Timer timer;
  const std::function<void()> look = [&] {
    holds = predicate();
    if (holds || loop.now() >= until) {
      loop.stop();
    } else {
      timer = loop.after(1ms, look);
    }
  };
  loop.post(look);
  loop.run();
  return holds;
}

void run_for(Loop& loop, Duration time) {
  run_until(loop, [] { return false; }, time);
}

void TestEndpoint::start(ConnectionHandle its) {
  connection = std::move(its);
  connection->start(
      {.on_frame = [this](Frame frame) { frames.push_back(std::move(frame)); },
       .on_closed =
           [this](const Status& reason) { closed.push_back(reason); }});
}

TestServer::TestServer(Loop& loop, const ListenerOptions& options)
    : TestServer(loop, options, {"127.0.0.1", 0}) {}

TestServer::TestServer(
    Loop& loop, const ListenerOptions& options, const HostAddress& address) {
  auto result = Listener::listen(
      loop, address, options,
      {.on_connection =
           [this](ConnectionHandle connection) {
             ends.push_back(std::make_unique<TestEndpoint>());
             ends.back()->start(std::move(connection));
           },
       .on_refused =
           [this](const Status& reason) {
             refused.push_back(reason.message());
           }});
  listener = std::move(result).value();
}

std::string dial(
    Loop& loop,
    const HostAddress& address,
    TestEndpoint& end,
    const ConnectorOptions& options) {
  std::optional<std::string> message;
  const Connector one(
      loop, address, options, [&](Result<ConnectionHandle> result) {
        message = result.ok() ? "" : result.status().message();
        if (result.ok()) {
          end.start(std::move(result).value());
        }
      });
  EXPECT_TRUE(run_until(loop, [&] { return message.has_value(); }));
  return message.value_or("no answer");
}

ConnectedPair::ConnectedPair(
    Loop& loop, const ConnectionOptions& options, const Security& security)
    : server(loop, {.security = security, .connection = options}) {
  const std::string failure = dial(
      loop, server.listener->address(), client,
      {.security = security, .connection = options});
  SHERD_CHECK(failure.empty(), failure);
  SHERD_CHECK(
      run_until(loop, [&] { return !server.ends.empty(); }),
      "nobody was accepted");
}

namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Descriptor new_socket() {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SHERD_CHECK(socket.open(), "no socket");
  return socket;
}

Descriptor connected_socket(std::uint16_t port) {
  Descriptor socket = new_socket();
  const auto address = loopback(port);
  SHERD_CHECK(
      ::connect(
          socket.get(), reinterpret_cast<const sockaddr*>(&address),
          sizeof address) == 0,
      "nobody listens on port ", port);
  return socket;
}

}  // namespace

std::string greeting() {
  return frame_bytes(
      {.type = kGreetingType,
       .payload = std::string(greeting_of(Side::kDialled))});
}

RawClient::RawClient(std::uint16_t port) : socket_(connected_socket(port)) {}

void RawClient::send(std::string_view bytes) const {
  // The other side may already have closed the connection.
  (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void RawClient::end_writing() const { ::shutdown(socket_.get(), SHUT_WR); }

bool RawClient::ended(std::string& heard) const {
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count =
        ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count <= 0) {
      return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
    heard.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

namespace {

// Binds a free port, which it returns in `at`.
Descriptor bound_socket(HostAddress& at) {
  Descriptor socket = new_socket();
  auto address = loopback(0);
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  SHERD_CHECK(
      ::bind(socket.get(), generic, bytes) == 0 &&
          ::getsockname(socket.get(), generic, &bytes) == 0,
      "no port");
  at = {"127.0.0.1", ntohs(address.sin_port)};
  return socket;
}

Descriptor listening_socket(HostAddress& at) {
  Descriptor socket = bound_socket(at);
  SHERD_CHECK(::listen(socket.get(), 8) == 0, "no listener");
  return socket;
}

// Returns false if this side or the other one has ended.
bool move_bytes(
    const Descriptor& from,
    const Descriptor& to,
    std::string& seen,
    const std::function<void(std::string&)>& change) {
  std::array<char, 65536> buffer{};
  const ssize_t count =
      ::recv(from.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK;
  }
  std::string bytes(buffer.data(), static_cast<std::size_t>(count));
  seen += bytes;
  if (change) {
    change(bytes);
  }
  return count > 0 &&
      ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == count;
}

}  // namespace

UnusedPort::UnusedPort() : socket_(bound_socket(address_)) {}

SilentHost::SilentHost() : socket_(listening_socket(address_)) {}

UnansweringHost::UnansweringHost(std::uint16_t port)
    : socket_(new_socket()), client_(new_socket()) {
  auto address = loopback(port);
  address.sin_addr.s_addr = ::inet_addr(ip());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  SHERD_CHECK(
      ::bind(socket_.get(), generic, sizeof address) == 0 &&
          ::listen(socket_.get(), 0) == 0 &&
          ::connect(client_.get(), generic, sizeof address) == 0,
      "no listener");
}

RecordingProxy::RecordingProxy(std::uint16_t listener_port)
    : listener_port_(listener_port), socket_(listening_socket(address_)) {}

void RecordingProxy::pump() {
  if (!client_.open()) {
    client_ =
        Descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    listener_ = connected_socket(listener_port_);
  }
  if (!move_bytes(client_, listener_, to_listener, change) ||
      !move_bytes(listener_, client_, to_client, nullptr)) {
    ::shutdown(client_.get(), SHUT_RDWR);
    ::shutdown(listener_.get(), SHUT_RDWR);
  }
}

namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using File = std::unique_ptr<FILE, int (*)(FILE*)>;

File open_file(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode), std::fclose);
  SHERD_CHECK(file != nullptr, "cannot open ", path);
  return file;
}

Key new_key() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

void add_extension(X509* certificate, int which, const std::string& value) {
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, nullptr, which, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Signed by `issuer` with its key; if that is null, self-signed as an authority.
Certificate sign(
    const std::string& name,
    PeerRole role,
    EVP_PKEY* key,
    X509* issuer,
    EVP_PKEY* issuer_key) {
  Certificate certificate(X509_new(), X509_free);
  X509* x = certificate.get();
  X509_set_version(x, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x), issuer == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(x), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x), 3600);
  X509_set_pubkey(x, key);
  X509_NAME_add_entry_by_txt(
      X509_get_subject_name(x), "CN", MBSTRING_ASC,
      reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(
      x, X509_get_subject_name(issuer == nullptr ? x : issuer));
  if (issuer == nullptr) {
    add_extension(x, NID_basic_constraints, "critical,CA:TRUE");
  } else {
    add_extension(x, NID_subject_alt_name, str("DNS:", name_of(role)));
  }
  SHERD_CHECK(X509_sign(x, issuer_key, EVP_sha256()) > 0, "cannot sign");
  return certificate;
}

void write_pem(const std::string& path, X509* certificate) {
  PEM_write_X509(open_file(path, "w").get(), certificate);
}

void write_pem(const std::string& path, EVP_PKEY* key) {
  PEM_write_PrivateKey(
      open_file(path, "w").get(), key, nullptr, nullptr, 0, nullptr, nullptr);
}

}  // namespace

TlsFiles make_certificate(
    const std::string& folder, const std::string& name, PeerRole role) {
  const std::string authority = folder + "/" + name + "-ca";
  const Key key = new_key();
  const Certificate certificate =
      sign(name + " authority", role, key.get(), nullptr, key.get());
  write_pem(authority + ".pem", certificate.get());
  write_pem(authority + ".key", key.get());
  return make_certificate_of(folder, name, name, role);
}

TlsFiles make_certificate_of(
    const std::string& folder,
    const std::string& name,
    const std::string& of,
    PeerRole role) {
  const std::string authority = folder + "/" + of + "-ca";
  const Key authority_key(
      PEM_read_PrivateKey(
          open_file(authority + ".key", "r").get(), nullptr, nullptr, nullptr),
      EVP_PKEY_free);
  const Certificate issuer(
      PEM_read_X509(
          open_file(authority + ".pem", "r").get(), nullptr, nullptr, nullptr),
      X509_free);
  const std::string path = folder + "/" + name;
  const Key key = new_key();
  const Certificate certificate =
      sign(name, role, key.get(), issuer.get(), authority_key.get());
  write_pem(path + ".pem", certificate.get());
  write_pem(path + ".key", key.get());
  return {path + ".pem", path + ".key", authority + ".pem"};
}

void encrypt_key(const std::string& path, std::string passphrase) {
  const Key key(
      PEM_read_PrivateKey(
          open_file(path, "r").get(), nullptr, nullptr, nullptr),
      EVP_PKEY_free);
  const int written = PEM_write_PrivateKey(
      open_file(path, "w").get(), key.get(), EVP_aes_128_cbc(), nullptr, 0,
      nullptr, passphrase.data());
  SHERD_CHECK(written == 1, "no key");
}

}  // namespace sherd::net::testing
