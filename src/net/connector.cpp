// SPDX-License-Identifier: Apache-2.0
#include "net/connector.h"

#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <optional>
#include <utility>
#include "base/check.h"
#include "net/asio_headers.h"

namespace sherd::net {
namespace {

// Child processes do not inherit it, unlike one that Asio opens.
void open_socket(
    Tcp::socket& socket, const Tcp& protocol, std::error_code& error) {
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    error.assign(errno, std::system_category());
    return;
  }
  socket.assign(protocol, fd, error);
  if (error) {
    ::close(fd);
  }
}

}  // namespace

// Resolves the name, connects a socket to one of the addresses, and exchanges greetings.
struct Connector::Impl : std::enable_shared_from_this<Connector::Impl> {
  Impl(
      Loop& its_loop,
      HostAddress to,
      const ConnectorOptions& its_options,
      Done call)
      : loop(its_loop),
        address(std::move(to)),
        options(its_options),
        done(std::move(call)),
        tls(make_tls_context(its_options.security)),
        resolver(its_loop.context()),
        socket(its_loop.context()) {}

  void begin() {
    std::vector<std::string> known = options.addresses;
    std::error_code is_name;
    asio::ip::make_address(address.host, is_name);
    if (known.empty() && !is_name) {
      known = {address.host};
    }
    std::vector<Tcp::endpoint> endpoints;
    for (const std::string& ip : known) {
      check_security(options.security, ip);
      endpoints.emplace_back(asio::ip::make_address(ip), address.port);
    }
    until = loop.now() + options.timeout;
    deadline = loop.after(options.timeout, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->fail(
            {ErrorCode::kDeadlineExceeded,
             str("[net] expected an answer of ", self->address.text(),
                 " within ", seconds(self->options.timeout),
                 " s, found none")});
      }
    });
    if (endpoints.empty()) {
      resolve();
    } else {
      connect(std::move(endpoints));
    }
  }

  void resolve() {
    resolver.async_resolve(
        address.host, std::to_string(address.port),
        [self = shared_from_this()](
            const std::error_code& error,
            const Tcp::resolver::results_type& found) {
          if (!self->done) {
            return;
          }
          if (error) {
            self->fail(
                {ErrorCode::kUnavailable,
                 str("[net] cannot find the address of ", self->address.host,
                     ": ", error.message())});
            return;
          }
          std::vector<Tcp::endpoint> endpoints;
          const Status allowed = status_of(
              [&] {
                for (const auto& entry : found) {
                  endpoints.push_back(entry.endpoint());
                  check_security(
                      self->options.security,
                      entry.endpoint().address().to_string());
                }
              },
              ErrorCode::kInvalidArgument);
          if (!allowed.ok()) {
            self->fail(allowed);
            return;
          }
          self->connect(std::move(endpoints));
        });
  }

  // Tries the first, then the others. REQUIRES: not empty.
  void connect(std::vector<Tcp::endpoint> endpoints) {
    const Tcp::endpoint peer = endpoints.front();
    const Duration share =
        (until - loop.now()) / static_cast<Duration::rep>(endpoints.size());
    endpoints.erase(endpoints.begin());
    const bool last = endpoints.empty();
    const auto ended =
        [self = shared_from_this(), peer,
         others = std::move(endpoints)](const std::error_code& error) {
          if (!self->done) {
            return;
          }
          self->next_address.cancel();
          // It may have been closed after it was connected and before this was called.
          if (!error && self->socket.is_open()) {
            self->connected(peer);
          } else if (!others.empty()) {
            self->connect(others);
          } else {
            self->fail(
                {ErrorCode::kUnavailable,
                 str("[net] cannot connect to ", self->address.text(), ": ",
                     error.message())});
          }
        };
    std::error_code error;
    socket.close(error);
    open_socket(socket, peer.protocol(), error);
    if (error) {
      asio::post(socket.get_executor(), [ended, error] { ended(error); });
      return;
    }
    if (!last) {  // The last one has all the time until the deadline.
      next_address = loop.after(share, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
          std::error_code ignored;
          self->socket.close(ignored);
        }
      });
    }
    socket.async_connect(peer, ended);
  }

  void connected(const Tcp::endpoint& peer) {
    connection = std::make_shared<Connection>(
        loop,
        make_channel(
            std::move(socket), options.connection, tls, Side::kDialled),
        Side::kDialled, text_of(peer), options.connection);
    deadline.cancel();
    connection->greet(
        std::max(until - loop.now(), Duration(0)),
        [self = shared_from_this()](const Status& status) {
          if (!status.ok()) {
            self->fail(status);
            return;
          }
          self->tell(handle_of(std::exchange(self->connection, nullptr)));
        });
  }

  void fail(Status why) {
    give_up();
    tell(std::move(why));
  }

  void tell(Result<ConnectionHandle> result) {
    deadline.cancel();
    // The call may destroy the Connector; the caller of this function shares the Impl.
    if (const Done call = std::exchange(done, nullptr)) {
      call(std::move(result));
    }
  }

  void give_up() {
    deadline.cancel();
    next_address.cancel();
    resolver.cancel();
    std::error_code ignored;
    socket.close(ignored);
    if (connection != nullptr) {
      std::exchange(connection, nullptr)->abandon();
    }
  }

  Loop& loop;
  const HostAddress address;
  const ConnectorOptions options;
  Done done;  // Empty once it was called or given up.
  const std::shared_ptr<TlsContext> tls;
  Tcp::resolver resolver;
  Tcp::socket socket;
  std::shared_ptr<Connection> connection;  // Used until the greeting.
  Instant until{0};
  Timer deadline;
  Timer next_address;  // When the current one has had its share of the time.
};

Connector::Connector(
    Loop& loop,
    const HostAddress& address,
    const ConnectorOptions& options,
    Done done)
    : impl_(std::make_shared<Impl>(loop, address, options, std::move(done))) {
  SHERD_ASSERT(loop.in_loop() && impl_->done);
  impl_->begin();
}

Connector::~Connector() {
  SHERD_ASSERT(impl_->loop.in_loop());
  impl_->done = nullptr;
  impl_->give_up();
}

struct ReconnectingClient::Impl
    : std::enable_shared_from_this<ReconnectingClient::Impl> {
  Impl(
      Loop& its_loop,
      HostAddress to,
      const ReconnectingClientOptions& its_options,
      std::function<std::uint64_t()> its_random,
      ReconnectingClientHandlers to_call)
      : loop(its_loop),
        address(std::move(to)),
        options(its_options),
        random(std::move(its_random)),
        handlers(std::move(to_call)),
        backoff(its_options.backoff) {}

  void dial_now() {
    dial.emplace(
        loop, address, options.dial,
        [weak = weak_from_this()](Result<ConnectionHandle> result) {
          if (const auto self = weak.lock()) {
            self->dial.reset();
            self->dialled(std::move(result));
          }
        });
  }

  void dial_later() {
    next_try =
        loop.after(backoff.next_jittered(random()), [weak = weak_from_this()] {
          const auto self = weak.lock();
          if (self == nullptr) {
            return;
          }
          // Certificate files may be missing for a while.
          const Status begun =
              status_of([&] { self->dial_now(); }, ErrorCode::kUnavailable);
          if (!begun.ok()) {
            self->failed(begun);
          }
        });
  }

  void dialled(Result<ConnectionHandle> result) {
    if (!result.ok()) {
      failed(result.status());
      return;
    }
    backoff.reset();
    connection = std::move(result).value();
    connection->start(
        {.on_frame =
             [weak = weak_from_this()](Frame frame) {
               if (const auto self = weak.lock()) {
                 self->handlers.on_frame(std::move(frame));
               }
             },
         .on_closed =
             [weak = weak_from_this()](const Status& reason) {
               if (const auto self = weak.lock()) {
                 self->lost(reason);
               }
             }});
    handlers.on_connected();
  }

  void lost(const Status& reason) {
    connection.reset();
    dial_later();
    handlers.on_lost(reason);
  }

  void failed(const Status& reason) {
    dial_later();
    if (handlers.on_failed) {
      handlers.on_failed(reason);
    }
  }

  Loop& loop;
  const HostAddress address;
  const ReconnectingClientOptions options;
  const std::function<std::uint64_t()> random;
  const ReconnectingClientHandlers handlers;
  Backoff backoff;
  // At most one of the three exists.
  std::optional<Connector> dial;
  ConnectionHandle connection;
  Timer next_try;
};

ReconnectingClient::ReconnectingClient(
    Loop& loop,
    const HostAddress& address,
    const ReconnectingClientOptions& options,
    std::function<std::uint64_t()> random,
    ReconnectingClientHandlers handlers)
    : impl_(std::make_shared<Impl>(
          loop, address, options, std::move(random), std::move(handlers))) {
  SHERD_ASSERT(
      loop.in_loop() && impl_->random && impl_->handlers.on_connected &&
      impl_->handlers.on_frame && impl_->handlers.on_lost);
  impl_->dial_now();
}

ReconnectingClient::~ReconnectingClient() {
  SHERD_ASSERT(impl_->loop.in_loop());
  impl_->dial.reset();
  impl_->connection.reset();
  impl_->next_try.cancel();
}

Connection* ReconnectingClient::connection() { return impl_->connection.get(); }

}  // namespace sherd::net
