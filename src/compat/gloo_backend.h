// SPDX-License-Identifier: Apache-2.0
//
// Makes c10d's Gloo backend, whose constructor, options and headers change
// between LibTorch versions. The header names no Gloo type, so that only one
// file of the library needs gloo's declarations. Thread rule: any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace sherd::compat {

// Where to listen: a local address or host name, else a network interface
// ("eth0"), else whatever this host's name resolves to.
struct GlooAddress {
  std::string address{};
  std::string network_interface{};
};

// A listening socket and the I/O thread of everything connected through it.
struct GlooDevice;
std::shared_ptr<GlooDevice> make_gloo_device(const GlooAddress& address);

struct GlooOptions {
  // How long connecting may take, and how long a wait without a limit of its own lasts.
  std::chrono::milliseconds connect_deadline = std::chrono::seconds(30);
  std::chrono::milliseconds wait_deadline = std::chrono::minutes(10);
  // Several backends may share one. REQUIRES: not null.
  std::shared_ptr<GlooDevice> device{};
};

// Collective: connects every rank with every other through `store`, which must
// hold no keys of an earlier group. Throws c10::Error or std::exception. The
// backend has one thread for collectives, and its device's.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const GlooOptions& options);

}  // namespace sherd::compat
