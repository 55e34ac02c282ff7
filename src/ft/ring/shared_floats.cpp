// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/shared_floats.h"

#include <fcntl.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include "base/check.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "net/authentication.h"

namespace sherd::ft::ring {
namespace {

using shm::Segment;

// These words are in a page at the segment's start; the floats follow.
enum Word : std::size_t { kKey, kLease, kWords };

std::size_t first_float() {
  return shm::round_up_to_pages(kWords * sizeof(std::uint64_t));
}

std::uint64_t& word(const Segment& segment, Word which) {
  return segment.at<std::uint64_t>(0, kWords)[which];
}

std::string link_text(const std::string& path) {
  std::array<char, 256> text = {};
  const auto size = ::readlink(path.c_str(), text.data(), text.size());
  return size < 0 ? std::string()
                  : std::string(text.data(), static_cast<std::size_t>(size));
}

Status elsewhere(std::string reason) {
  return {ErrorCode::kUnavailable, std::move(reason)};
}

}  // namespace

// ---- SharedFloats ----

SharedFloats::SharedFloats(std::size_t count)
    : count_(count), key_(net::random_number()) {
  auto made = Segment::create(
      {.bytes = first_float() + count * sizeof(float), .huge_pages = true});
  if (!made.ok()) {
    log_warning(
        str("neighbours on this host get this rank's gradients over TCP: ",
            made.status().message()));
    private_.resize(count);
    floats_ = private_.data();
    return;
  }
  segment_ = std::move(made).value();
  word(segment_, kKey) = key_;
  floats_ = segment_.at<float>(first_float(), count).data();
}

IpcHandle SharedFloats::name() const {
  if (segment_.data() == nullptr) {
    return {};
  }
  return {
      static_cast<std::uint32_t>(::getpid()),
      static_cast<std::uint32_t>(segment_.descriptor()), segment_.bytes()};
}

std::optional<std::uint64_t> SharedFloats::place_of(
    const float* floats, std::size_t count) const {
  // Compared as numbers, because pointers into different objects have no order.
  const auto begin = reinterpret_cast<std::uintptr_t>(floats_);
  const auto at = reinterpret_cast<std::uintptr_t>(floats);
  if (segment_.data() == nullptr || at < begin ||
      (at - begin) % sizeof(float) != 0) {
    return std::nullopt;
  }
  const std::size_t place = (at - begin) / sizeof(float);
  if (place > count_ || count > count_ - place) {
    return std::nullopt;
  }
  return place;
}

void SharedFloats::begin_lease() { publish(++leases_); }

void SharedFloats::end_lease() { publish(0); }

void SharedFloats::publish(std::uint64_t lease) {
  lease_ = lease;
  if (segment_.data() == nullptr) {
    return;
  }
  std::atomic_ref(word(segment_, kLease))
      .store(lease, std::memory_order_relaxed);
  // Comes before all writes that follow; pairs with the fence in holds(): a reader of one of those
  // writes does not find the former lease.
  std::atomic_thread_fence(std::memory_order_release);
}

// ---- PeerFloats ----

Result<PeerFloats> PeerFloats::open(const IpcHandle& name) {
  const std::string process = str("/proc/", name.process);
  // Another network namespace counts as another host.
  const std::string network = link_text("/proc/self/ns/net");
  if (network.empty() || link_text(process + "/ns/net") != network) {
    return elsewhere(
        str("expected process ", name.process,
            " in the network of this one, found none that may be looked at"));
  }
  const std::string path = str(process, "/fd/", name.descriptor);
  // Checked before opening it, which may have effects if it is something else.
  const std::string found = link_text(path);
  if (!found.starts_with("/memfd:sherd-segment")) {
    return elsewhere(
        str("expected a shared segment at ", path, ", found '", found, "'"));
  }
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.open()) {
    return elsewhere(str(path, ": ", std::strerror(errno)));
  }
  if (name.bytes < first_float()) {
    return elsewhere(
        str("expected a segment of ", first_float(), " bytes and more, found ",
            name.bytes));
  }
  SHERD_ASSIGN_OR_RETURN(
      Segment mapped,
      Segment::from_descriptor(
          std::move(file), {.bytes = static_cast<std::size_t>(name.bytes)}));
  PeerFloats peer(std::move(mapped));
  SHERD_RETURN_IF_FAILED(peer.segment_.make_read_only(
      0, shm::round_up_to_pages(peer.segment_.bytes())));
  return peer;
}

std::uint64_t PeerFloats::key() const { return word(segment_, kKey); }

const float* PeerFloats::at(std::uint64_t place, std::size_t count) const {
  const std::size_t all = (segment_.bytes() - first_float()) / sizeof(float);
  if (place > all || count > all - place) {
    return nullptr;
  }
  const auto offset = static_cast<std::size_t>(place) * sizeof(float);
  return segment_.at<float>(first_float() + offset, count).data();
}

bool PeerFloats::holds(std::uint64_t lease) const {
  // Comes after all earlier reads; pairs with the fence in publish().
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::atomic_ref(word(segment_, kLease))
             .load(std::memory_order_relaxed) == lease &&
      lease != 0;
}

}  // namespace sherd::ft::ring
