// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring_testing.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>
#include <gtest/gtest.h>
#include "base/check.h"
#include "ft/protocol/reduce_shape.h"
#include "ft/ring/block_digest.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {

bool wait_until(const std::function<bool()>& holds) {
  const SteadyClock clock;
  const Instant until = clock.now() + kTestDeadline;
  while (!holds()) {
    if (clock.now() > until) {
      return false;
    }
    ::poll(nullptr, 0, 1);
  }
  return true;
}

// ---- events of a ring ----

RingEvents EventRecorder::events() {
  const auto keep = [this](auto& map, const auto& key, auto value) {
    const std::lock_guard lock(mu_);
    map.emplace(key, std::move(value));
    changed_.notify_all();
  };
  return {
      [=, this](Epoch epoch) { keep(joined_, epoch, true); },
      [=, this](Attempt attempt, std::uint64_t digest) {
        keep(reduced_, attempt, digest);
      },
      [=, this](const Epoch& epoch, const RingEnding& ending) {
        keep(failed_, epoch, ending);
      }};
}

template <typename Map, typename Key>
std::optional<typename Map::mapped_type> EventRecorder::wait(
    Map& map, const Key& key) {
  std::unique_lock lock(mu_);
  if (!changed_.wait_for(
          lock, kTestDeadline, [&] { return map.contains(key); })) {
    return std::nullopt;
  }
  return map.at(key);
}

bool EventRecorder::joined(const Epoch& epoch) {
  return wait(joined_, epoch).has_value();
}
std::optional<std::uint64_t> EventRecorder::reduced(const Attempt& attempt) {
  return wait(reduced_, attempt);
}
std::optional<RingEnding> EventRecorder::failed(const Epoch& epoch) {
  return wait(failed_, epoch);
}
bool EventRecorder::reduced_unless_failed(const Attempt& attempt) {
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, kTestDeadline, [&] {
    return reduced_.contains(attempt) || failed_.contains(attempt.epoch);
  });
  return reduced_.contains(attempt);
}
bool EventRecorder::has_failed(const Epoch& epoch) {
  const std::lock_guard lock(mu_);
  return failed_.contains(epoch);
}

bool EventRecorder::has_reduced(const Attempt& attempt) {
  const std::lock_guard lock(mu_);
  return reduced_.contains(attempt);
}

// ---- floats ----

Floats random_buckets(const Layout& layout, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Floats buckets;
  for (const auto count : layout) {
    auto& bucket = buckets.emplace_back(static_cast<std::size_t>(count));
    for (auto& value : bucket) {
      const auto bits = random();
      const auto exponent = static_cast<int>(bits % 40) - 20;
      const auto mantissa =
          static_cast<float>(static_cast<std::int32_t>(bits >> 32U));
      value = bits % 101 == 0 ? -0.0F : std::ldexp(mantissa, exponent - 31);
    }
  }
  return buckets;
}

Floats zero_buckets(const Layout& layout) {
  Floats buckets;
  for (const auto count : layout) {
    buckets.emplace_back(static_cast<std::size_t>(count));
  }
  return buckets;
}

namespace {

// A member's contributions to an element.
class Parts {
 public:
  Parts(
      const std::vector<const Floats*>& in, const std::vector<double>& weights)
      : in_(in) {
    double sum = 0;
    for (const double weight : weights) {
      sum += weight;
    }
    for (const double weight : weights) {
      factors_.push_back(static_cast<float>(weight / sum));
    }
  }
  float of(std::size_t member, std::size_t bucket, std::size_t i) const {
    // Volatile, so that no compiler fuses what the ring does not.
    volatile float part = 0;
    if (factors_[member] > 0) {
      part = factors_[member] * (*in_[member])[bucket][i];
    }
    return part;
  }
  int members() const { return static_cast<int>(in_.size()); }

 private:
  std::vector<const Floats*> in_;
  std::vector<float> factors_;
};

void add_in_ring(const Parts& parts, std::size_t bucket, BucketValues& out) {
  const std::size_t count = out.size();
  const auto members = static_cast<std::size_t>(parts.members());
  // The segment, found by counting: the longer ones come first.
  std::size_t segment = 0;
  std::size_t left = count / members + (count % members > 0 ? 1 : 0);
  for (std::size_t i = 0; i < count; ++i) {
    while (left == 0) {
      ++segment;
      left = count / members + (segment < count % members ? 1 : 0);
    }
    --left;
    for (std::size_t k = 0; k < members; ++k) {
      const float part = parts.of((segment + k) % members, bucket, i);
      out[i] = k == 0 ? part : out[i] + part;
    }
  }
}

struct Tree {
  std::vector<TreeNode> nodes;  // Indexed by position.
  std::size_t root = 0;
};

Tree tree_of(int members, int tree) {
  Tree all;
  for (int position = 0; position < members; ++position) {
    all.nodes.push_back(tree_node_of(members, tree, position));
    if (!all.nodes.back().parent) {
      all.root = static_cast<std::size_t>(position);
    }
  }
  return all;
}

// Sums the first child's sum, the member's own part and the second child's sum, in this order.
float tree_sum(
    const Parts& parts,
    const Tree& tree,
    std::size_t position,
    std::size_t bucket,
    std::size_t i) {
  float sum = parts.of(position, bucket, i);
  for (const int child : tree.nodes[position].children) {
    sum =
        tree_sum(parts, tree, static_cast<std::size_t>(child), bucket, i) + sum;
  }
  return sum;
}

void add_in_trees(
    const Parts& parts,
    std::size_t bucket,
    std::size_t chunk,
    std::size_t slices_before,
    BucketValues& out) {
  const Tree trees[kTrees] = {
      tree_of(parts.members(), 0), tree_of(parts.members(), 1)};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Tree& tree = trees[(slices_before + i / chunk) % kTrees];
    out[i] = tree_sum(parts, tree, tree.root, bucket, i);
  }
}

}  // namespace

Floats reference(
    const std::vector<const Floats*>& in,
    const std::vector<double>& weights,
    std::size_t chunk_bytes) {
  const Parts parts(in, weights);
  const int members = parts.members();
  Floats out = *in[0];
  std::size_t slices = 0;  // Used in trees.
  for (std::size_t b = 0; b < out.size(); ++b) {
    if (reduce_shape_of(members) == ReduceShape::kRing) {
      add_in_ring(parts, b, out[b]);
      continue;
    }
    const auto chunk = static_cast<std::size_t>(tree_chunk_of(
        static_cast<std::int64_t>(out[b].size()), members,
        static_cast<std::int64_t>(chunk_bytes / sizeof(float))));
    add_in_trees(parts, b, chunk, slices, out[b]);
    slices += (out[b].size() + chunk - 1) / chunk;
  }
  return out;
}

std::uint64_t digest_of(const Floats& floats) {
  Layout elements;
  BucketValues sum;
  for (const auto& bucket : floats) {
    elements.push_back(static_cast<std::int64_t>(bucket.size()));
    sum.insert(sum.end(), bucket.begin(), bucket.end());
  }
  return digest_of(elements, sum.data());
}

bool same_bits(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        (!a[i].empty() &&
         std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) !=
             0)) {
      return false;
    }
  }
  return true;
}

// ---- groups ----

std::string name_of(DataPath way) {
  return way == DataPath::kTcp   ? "Tcp"
      : way == DataPath::kShared ? "Shared"
                                 : "Mixed";
}

void* SharedResource::do_allocate(std::size_t bytes, std::size_t alignment) {
  SHERD_ASSERT(
      alignment <= alignof(float) &&
          used_ + bytes <= floats_.size() * sizeof(float),
      "room in the shared memory of a test");
  void* place = reinterpret_cast<char*>(floats_.data()) + used_;
  used_ += bytes;
  return place;
}

namespace {

std::unique_ptr<SharedResource> memory_for(Memory kind, const Layout& layout) {
  if (kind == Memory::kOwn) {
    return nullptr;
  }
  const auto sum = std::accumulate(layout.begin(), layout.end(), Layout{0}[0]);
  // Twice the sum, for `in` and `out`.
  return std::make_unique<SharedResource>(2 * static_cast<std::size_t>(sum));
}

Floats moved_to(SharedResource* memory, const Floats& floats) {
  Floats moved;
  for (const auto& bucket : floats) {
    moved.emplace_back(
        bucket, memory == nullptr ? std::pmr::get_default_resource() : memory);
  }
  return moved;
}

RingOptions with(
    RingOptions options, const Layout& layout, SharedResource* memory) {
  options.elements = layout;
  options.memory = memory == nullptr ? nullptr : &memory->floats();
  return options;
}

}  // namespace

TestMember::TestMember(
    RingOptions options, const Layout& layout, std::uint64_t seed, Memory kind)
    : memory(memory_for(kind, layout)),
      in(moved_to(memory.get(), random_buckets(layout, seed))),
      out(moved_to(memory.get(), zero_buckets(layout))),
      ring(
          with(std::move(options), layout, memory.get()),
          events_seen.events()) {
  ring.set_run(kTestRun);
}

void TestMember::give_all() {
  for (std::size_t b = 0; b < in.size(); ++b) {
    ring.give(static_cast<int>(b), in[b].data(), out[b].data());
  }
}

RingGroup::RingGroup(int members, const RingGroupOptions& options)
    : chunk_bytes_(options.chunk_bytes) {
  for (int i = 0; i < members; ++i) {
    RingOptions ring;
    ring.replica = static_cast<ReplicaId>(i);
    ring.incarnation = 100 + static_cast<Incarnation>(i);
    ring.chunk_bytes = options.chunk_bytes;
    ring.slots = options.slots;
    ring.connect_timeout = options.connect_timeout;
    const bool shares = options.way == DataPath::kShared ||
        (options.way == DataPath::kMixed && i != 1);
    members_.push_back(std::make_unique<TestMember>(
        ring, options.layout, options.seed * 1000 + ring.incarnation,
        shares ? Memory::kShared : Memory::kOwn));
  }
}

RingMembership RingGroup::epoch(
    std::uint64_t number, const std::vector<int>& replicas) {
  RingMembership epoch{{1, number}, {}};
  for (const int r : replicas) {
    epoch.members.push_back(
        {static_cast<ReplicaId>(r), 100 + static_cast<Incarnation>(r),
         "127.0.0.1", (*this)[r].ring.port()});
  }
  return epoch;
}

RingMembership RingGroup::epoch(std::uint64_t number) {
  std::vector<int> all;
  for (int i = 0; i < size(); ++i) {
    all.push_back(i);
  }
  return epoch(number, all);
}

void RingGroup::give_all() {
  for (auto& member : members_) {
    member->give_all();
  }
}

bool RingGroup::join(const RingMembership& epoch) {
  for (const auto& member : epoch.members) {
    (*this)[static_cast<int>(member.replica)].ring.join(epoch);
  }
  for (const auto& member : epoch.members) {
    if (!(*this)[static_cast<int>(member.replica)].events_seen.joined(
            epoch.epoch)) {
      return false;
    }
  }
  return true;
}

void RingGroup::begin(
    const RingMembership& epoch,
    std::int64_t step,
    const std::vector<double>& weights) {
  for (const auto& member : epoch.members) {
    (*this)[static_cast<int>(member.replica)].ring.begin(
        {epoch.epoch, step}, weights);
  }
}

Floats RingGroup::expected(
    const RingMembership& epoch, const std::vector<double>& weights) {
  std::vector<const Floats*> in;
  for (const auto& member : epoch.members) {
    in.push_back(&(*this)[static_cast<int>(member.replica)].in);
  }
  return reference(in, weights, chunk_bytes_);
}

void RingGroup::expect_reduced(
    const RingMembership& epoch,
    std::int64_t step,
    const std::vector<double>& weights) {
  const Floats sum = expected(epoch, weights);
  for (const auto& member : epoch.members) {
    auto& one = (*this)[static_cast<int>(member.replica)];
    const auto digest = one.events_seen.reduced({epoch.epoch, step});
    ASSERT_TRUE(digest.has_value()) << "replica " << member.replica;
    EXPECT_TRUE(same_bits(one.out, sum)) << "replica " << member.replica;
    EXPECT_EQ(*digest, digest_of(sum)) << "replica " << member.replica;
  }
}

// ---- this process ----

std::size_t descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& one :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:sherd-segment") != std::string::npos ? 1U : 0U;
  }
  return count;
}

std::size_t descriptors_down_to(std::size_t count) {
  (void)wait_until([&] { return descriptors() <= count; });
  return descriptors();
}

// ---- hand-made peers ----

Connected connect_to(std::uint16_t port) {
  Connected connected{
      Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const auto address = net::resolve("127.0.0.1", port).value();
  EXPECT_EQ(
      0,
      ::connect(
          connected.socket.get(),
          reinterpret_cast<const sockaddr*>(&address.storage), address.bytes));
  timeval limit = {};
  limit.tv_sec = 10;
  ::setsockopt(
      connected.socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return connected;
}

bool Connected::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent =
        ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string Connected::receive(std::size_t bytes) {
  std::string got(bytes, '\0');
  std::size_t have = 0;
  while (have < bytes) {
    const auto more = ::recv(socket.get(), &got[have], bytes - have, 0);
    if (more <= 0) {
      break;
    }
    have += static_cast<std::size_t>(more);
  }
  got.resize(have);
  return got;
}

// ---- the proxy ----

constexpr int kHeldMax = 64 << 10;

struct Proxy::State {
  net::ListeningSocket listening;
  Descriptor quit;
  std::uint16_t target = 0;
  InjectedFault fault;
  std::atomic<bool> holds = false;
  std::thread thread;

  // Counts the bytes of the connecting side, into which the fault is injected.
  std::size_t seen = 0;
  std::string held;
  bool ended = false;
  Descriptor go;  // An eventfd that releases the held bytes.

  void run();
  // Further bytes stay with the connecting side.
  bool holds_enough() const { return fault.hold_at && held.size() >= kHeldMax; }
  // Returns false if nothing more will come from there.
  bool forward(int from, int to, bool of_caller);
  // Returns how many of the connecting side's bytes are forwarded, possibly changed.
  std::size_t spoil(char* bytes, std::size_t count);
};

std::size_t Proxy::State::spoil(char* bytes, std::size_t count) {
  const auto before = seen;
  seen += count;
  if (fault.flip_at && *fault.flip_at >= before && *fault.flip_at < seen) {
    char& byte = bytes[*fault.flip_at - before];
    byte = static_cast<char>(~byte);
  }
  if (!fault.hold_at || seen <= *fault.hold_at) {
    return count;
  }
  const auto goes = before < *fault.hold_at ? *fault.hold_at - before : 0;
  held.append(bytes + goes, count - goes);
  // Release: pairs with the acquire in holds().
  holds.store(true, std::memory_order_release);
  return goes;
}

bool Proxy::State::forward(int from, int to, bool of_caller) {
  std::array<char, 16384> bytes = {};
  const auto got = ::recv(from, bytes.data(), bytes.size(), 0);
  if (got <= 0 && of_caller && fault.hold_at && fault.holds_end) {
    ended = true;
    return false;
  }
  if (got <= 0) {
    ::shutdown(to, SHUT_WR);
    return false;
  }
  auto count = static_cast<std::size_t>(got);
  if (of_caller) {
    count = spoil(bytes.data(), count);
  }
  // The send may fail if that side is gone, but the other may still have data.
  ::send(to, bytes.data(), count, MSG_NOSIGNAL);
  return true;
}

void Proxy::State::run() {
  pollfd first[2] = {
      {listening.socket.get(), POLLIN, 0}, {quit.get(), POLLIN, 0}};
  ::poll(first, 2, -1);
  if (first[1].revents != 0) {
    return;
  }
  const Descriptor caller(
      ::accept4(listening.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const Connected called = connect_to(target);
  pollfd all[4] = {
      {caller.get(), POLLIN, 0},
      {called.socket.get(), POLLIN, 0},
      {quit.get(), POLLIN, 0},
      {go.get(), POLLIN, 0}};
  bool reads_caller = true;
  while (reads_caller || all[1].fd >= 0 || ended) {
    all[0].fd = reads_caller && !holds_enough() ? caller.get() : -1;
    ::poll(all, 4, -1);
    if (all[2].revents != 0) {
      return;
    }
    if (all[3].revents != 0) {
      all[3].fd = -1;
      fault.hold_at.reset();
      ::send(called.socket.get(), held.data(), held.size(), MSG_NOSIGNAL);
      if (std::exchange(ended, false)) {
        ::shutdown(called.socket.get(), SHUT_WR);
      }
    }
    if (all[0].revents != 0 &&
        !forward(caller.get(), called.socket.get(), true)) {
      reads_caller = false;
    }
    if (all[1].revents != 0 &&
        !forward(called.socket.get(), caller.get(), false)) {
      all[1].fd = -1;
    }
  }
}

Proxy::Proxy(std::uint16_t target, InjectedFault fault)
    : state_(std::make_unique<State>()) {
  state_->listening = std::move(net::listen_on("127.0.0.1")).value();
  // Its connections inherit this; otherwise the kernel would hold megabytes, too.
  EXPECT_EQ(
      0,
      ::setsockopt(
          state_->listening.socket.get(), SOL_SOCKET, SO_RCVBUF, &kHeldMax,
          sizeof kHeldMax));
  state_->quit = Descriptor(::eventfd(0, EFD_CLOEXEC));
  state_->go = Descriptor(::eventfd(0, EFD_CLOEXEC));
  state_->target = target;
  state_->fault = fault;
  // The listener is non-blocking; poll() does the waiting.
  state_->thread = std::thread([this] { state_->run(); });
}

Proxy::~Proxy() {
  const std::uint64_t one = 1;
  EXPECT_EQ(8, ::write(state_->quit.get(), &one, sizeof one));
  state_->thread.join();
}

void Proxy::release() {
  const std::uint64_t one = 1;
  EXPECT_EQ(8, ::write(state_->go.get(), &one, sizeof one));
}

std::uint16_t Proxy::port() const { return state_->listening.port; }

bool Proxy::holds() {
  return wait_until(
      [&] { return state_->holds.load(std::memory_order_acquire); });
}

RingMembership join_behind(RingGroup& group, const Proxy& proxy) {
  auto epoch = group.epoch(1);
  group[1].ring.join(epoch);
  epoch.members[1].port = proxy.port();
  group[0].ring.join(epoch);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(group[i].events_seen.joined(epoch.epoch));
  }
  group.give_all();
  return epoch;
}

}  // namespace sherd::ft::ring
