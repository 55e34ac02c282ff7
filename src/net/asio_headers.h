// SPDX-License-Identifier: Apache-2.0
//
// Asio's headers for net's own sources. No other header includes them, so that users of net do not
// compile Asio's templates. Thread rule: none of its own.
#pragma once

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include "net/channel.h"
#include "net/connection.h"

namespace sherd::net {

using Tcp = asio::ip::tcp;

// The channel of a connected socket, with its options set; it uses TLS if `tls` is not null.
std::unique_ptr<Channel> make_channel(
    Tcp::socket socket,
    const ConnectionOptions& options,
    const std::shared_ptr<TlsContext>& tls,
    Side side);

// "10.0.0.7:4300".
std::string text_of(const Tcp::endpoint& endpoint);

}  // namespace sherd::net
