// SPDX-License-Identifier: Apache-2.0
#include "ft/agent/commands.h"

#include <cstddef>
#include <type_traits>
#include <utility>

#include "net/bytes.h"

namespace sherd::ft {
namespace {

constexpr std::size_t kTextBytesMax = 65536;
constexpr std::size_t kElementsMax = 65536;

// Writes and reads the same fields in the same order.
class Writer {
 public:
  void operator()(const std::string& text) {
    bytes.text(std::string_view(text).substr(0, kTextBytesMax));
  }
  template <typename T>
  void operator()(const std::vector<T>& list) {
    bytes.count(list.size());
    for (const auto& one : list) {
      field(*this, const_cast<T&>(one));  // Read only.
    }
  }
  template <typename T>
  void operator()(const std::optional<T>& maybe) {
    bytes.boolean(maybe.has_value());
    if (maybe) {
      field(*this, const_cast<T&>(*maybe));  // Read only.
    }
  }
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      bytes.f64(value);
    } else {
      bytes.u64(static_cast<std::uint64_t>(value));
    }
  }
  net::ByteWriter bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view from) : bytes(from) {}
  void operator()(std::string& text) {
    text = bytes.text("a text", kTextBytesMax);
  }
  template <typename T>
  void operator()(std::vector<T>& list) {
    list.resize(bytes.count("a list", {kElementsMax, 1}));
    for (auto& one : list) {
      field(*this, one);
    }
  }
  template <typename T>
  void operator()(std::optional<T>& maybe) {
    if (bytes.boolean("whether there is one")) {
      field(*this, maybe.emplace());
    }
  }
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      value = bytes.f64("a number");
    } else {
      value = static_cast<T>(bytes.u64("a number"));
    }
  }
  net::ByteReader bytes;
};

// ---- fields ----

template <typename F, typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
void field(F& f, T& value) {
  f(value);
}
template <typename F>
void field(F& f, std::string& text) {
  f(text);
}
template <typename F>
void field(F& f, Epoch& epoch) {
  f(epoch.term);
  f(epoch.number);
}
template <typename F>
void field(F& f, Attempt& attempt) {
  field(f, attempt.epoch);
  f(attempt.step);
}
template <typename F>
void field(F& f, StateId& state) {
  f(state.step);
  f(state.lineage.high);
  f(state.lineage.low);
}
template <typename F>
void field(F& f, SampleRange& range) {
  f(range.begin);
  f(range.end);
}
template <typename F>
void field(F& f, Commit& commit) {
  field(f, commit.attempt);
  field(f, commit.base);
  field(f, commit.result);
  f(commit.gradients);
  f(commit.samples);
}
template <typename F>
void field(F& f, RankAddress& address) {
  f(address.host);
  f(address.reduce_port);
  f(address.fetch_port);
}
template <typename F>
void field(F& f, RingMember& member) {
  f(member.replica);
  f(member.incarnation);
  f(member.host);
  f(member.port);
}
template <typename F>
void field(F& f, Suspicion& suspicion) {
  field(f, suspicion.epoch);
  f(suspicion.accused);
  f(suspicion.reason);
}
template <typename F>
void field(F& f, Progress& progress) {
  f(progress.activity);
  f(progress.serial);
  f(progress.waits_for);
}

template <typename F>
void field(F& f, RunCommand& c) {
  f(c.run);
}
template <typename F>
void field(F& f, JoinCommand& c) {
  field(f, c.epoch.epoch);
  f(c.epoch.members);
}
template <typename F>
void field(F& f, ComputeCommand& c) {
  f(c.serial);
  field(f, c.base);
  f(c.samples);
  f(c.replicas);
}
template <typename F>
void field(F& f, ReduceCommand& c) {
  field(f, c.attempt);
  f(c.weights);
}
template <typename F>
void field(F& f, StopReduceCommand& c) {
  field(f, c.epoch);
}
template <typename F>
void field(F& f, ApplyCommand& c) {
  field(f, c.commit);
}
template <typename F>
void field(F& f, SnapshotCommand& c) {
  field(f, c.state);
}
template <typename F>
void field(F& f, FetchStateCommand& c) {
  f(c.serial);
  field(f, c.donor);
  field(f, c.state);
}
template <typename F>
void field(F& f, FetchSumCommand& c) {
  f(c.serial);
  field(f, c.donor);
  field(f, c.base);
}
template <typename F>
void field(F&, DropFetchCommand&) {}
template <typename F>
void field(F& f, InstallCommand& c) {
  f(c.serial);
}
template <typename F>
void field(F& f, StopCommand& c) {
  f(c.reason);
}
template <typename F>
void field(F& f, JoinedEvent& e) {
  field(f, e.epoch);
}
template <typename F>
void field(F& f, ReducedEvent& e) {
  field(f, e.attempt);
  f(e.digest);
}
template <typename F>
void field(F& f, PeerLostEvent& e) {
  field(f, e.suspicion);
}
template <typename F>
void field(F& f, AppliedEvent& e) {
  field(f, e.state);
}
template <typename F>
void field(F& f, FetchedEvent& e) {
  f(e.serial);
  f(e.failure);
  field(f, e.commit);
  f(e.digest);
}
template <typename F>
void field(F& f, InstalledEvent& e) {
  f(e.serial);
  field(f, e.state);
}
template <typename F>
void field(F& f, ProgressEvent& e) {
  field(f, e.progress);
}
template <typename F>
void field(F&, LeaveEvent&) {}
template <typename F>
void field(F&, FinishedEvent&) {}

// Its place among the alternatives, and its fields.
template <typename Variant>
std::string written(Variant value) {
  Writer writer;
  writer.bytes.u8(static_cast<std::uint8_t>(value.index()));
  std::visit([&](auto& one) { field(writer, one); }, value);
  return writer.bytes.take();
}

template <typename Variant, std::size_t I = 0>
Variant made(std::size_t index) {
  if constexpr (I + 1 < std::variant_size_v<Variant>) {
    if (index != I) {
      return made<Variant, I + 1>(index);
    }
  }
  return Variant(std::in_place_index<I>);
}

template <typename Variant>
Result<Variant> read(std::string_view bytes, const char* what) {
  Reader reader(bytes);
  auto value = made<Variant>(
      reader.bytes.choice(what, std::variant_size_v<Variant> - 1));
  std::visit([&](auto& one) { field(reader, one); }, value);
  if (auto status = reader.bytes.finish(what); !status.ok()) {
    return status;
  }
  return value;
}

}  // namespace

std::string bytes_of(const Command& command) { return written(command); }
std::string bytes_of(const AgentEvent& event) { return written(event); }
Result<Command> command_of(std::string_view bytes) {
  return read<Command>(bytes, "a command");
}
Result<AgentEvent> event_of(std::string_view bytes) {
  return read<AgentEvent>(bytes, "an event");
}

}  // namespace sherd::ft
