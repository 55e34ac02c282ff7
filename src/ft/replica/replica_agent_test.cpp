// SPDX-License-Identifier: Apache-2.0
//
// Replicas with a model of a few numbers, over the real coordinator, rings and transfers, in
// threads. tests/ft has the tests that kill processes.
#include "ft/replica/replica_agent.h"

#include <poll.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <gmock/gmock.h>
#include <sherd/base/run_main.h>
#include "base/hash.h"
#include "ft/coordinator/coordinator_server.h"
#include "net/listener.h"
#include "net/tcp_socket.h"
#include "support/scratch_folder.h"

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kElements = 100000;
constexpr std::int64_t kSamples = 8;

// The coordinator, in a thread.
class Coordination {
 public:
  explicit Coordination(int replicas, int replicas_min = 1) {
    CoordinatorServerOptions options;
    options.address = {"127.0.0.1", 0};
    options.log = folder_.path() + "/coordinator.db";
    options.coordinator.run = 77;
    options.coordinator.replicas_start = replicas;
    options.coordinator.replicas_min = replicas_min;
    options.coordinator.samples_per_replica = kSamples;
    service_ =
        CoordinatorServer::start(loop_, options, [](const Status&) {}).value();
    thread_ = std::jthread([this] { loop_.run(); });
  }
  ~Coordination() {
    loop_.stop();
    thread_.join();
  }
  Coordination(const Coordination&) = delete;
  Coordination& operator=(const Coordination&) = delete;
  net::HostAddress address() const { return service_->address(); }

 private:
  const sherd::testing::ScratchFolder folder_;
  net::Loop loop_;
  std::unique_ptr<CoordinatorServer> service_;
  std::jthread thread_;
};

// A model with momentum, whose state goes wrong if a step is missed or made twice.
class ToyModel {
 public:
  explicit ToyModel(int shard)
      : values_(kElements), momentum_(kElements), shard_(shard) {}

  void gradients_of(const std::vector<SampleRange>& samples, float* to) const {
    std::int64_t count = 0;
    for (const auto& range : samples) {
      count += range.size();
    }
    for (std::int64_t i = 0; i < kElements; ++i) {
      float sum = 0;
      for (const auto& range : samples) {
        for (auto s = range.begin; s < range.end; ++s) {
          const auto draw = mix64(
              static_cast<std::uint64_t>(s * 7919 + i * 31 + shard_ * 1000003));
          sum += values_[static_cast<std::size_t>(i)] -
              static_cast<float>(draw % 1000) * 1e-3F;
        }
      }
      to[i] = count > 0 ? sum / static_cast<float>(count) : 0;
    }
  }
  TrainingCallbacks program() {
    return {
        .snapshot =
            [this] {
              std::string bytes(2 * kBytes, '\0');
              std::memcpy(bytes.data(), values_.data(), kBytes);
              std::memcpy(bytes.data() + kBytes, momentum_.data(), kBytes);
              return bytes;
            },
        .restore =
            [this](const StateId&, std::string_view bytes) {
              ASSERT_EQ(bytes.size(), 2 * kBytes);
              std::memcpy(values_.data(), bytes.data(), kBytes);
              std::memcpy(momentum_.data(), bytes.data() + kBytes, kBytes);
            },
        .prepare =
            [this](int bucket, const float* sum) {
              const auto begin = bucket == 0 ? 0 : kElements / 2;
              const auto end = bucket == 0 ? kElements / 2 : kElements;
              std::copy(sum + begin, sum + end, copied_.begin() + begin);
            },
        .update =
            [this](const Commit&, const float*) {
              for (std::size_t i = 0; i < kElements; ++i) {
                momentum_[i] = 0.9F * momentum_[i] + copied_[i];
                values_[i] -= 0.1F * momentum_[i];
              }
            }};
  }
  std::uint64_t hash() const {
    Hash64 hash;
    for (const float value : values_) {
      hash.add(std::bit_cast<std::uint32_t>(value));
    }
    return hash.value();
  }

 private:
  static constexpr std::size_t kBytes = kElements * sizeof(float);
  std::vector<float> values_;
  std::vector<float> momentum_;
  // Copied from a sum.
  std::vector<float> copied_ = std::vector<float>(kElements);
  int shard_;
};

// The hash of the parameters for each replica, rank and step.
class Hashes {
 public:
  void add(int shard, std::int64_t step, std::uint64_t hash) {
    const std::lock_guard lock(mutex_);
    const auto [known, first] =
        hashes_.emplace(std::make_pair(shard, step), hash);
    EXPECT_EQ(known->second, hash) << "rank " << shard << " at step " << step;
    last_ = std::max(last_, step);
  }
  std::int64_t last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::int64_t>, std::uint64_t> hashes_;
  std::int64_t last_ = 0;
};

// One incarnation of a replica, with a thread for each of its ranks.
class ToyReplica {
 public:
  ToyReplica(
      const net::HostAddress& coordinator,
      Hashes& hashes,
      ReplicaId replica,
      Incarnation incarnation,
      int ranks,
      const std::atomic<std::int64_t>& steps) {
    for (int rank = 0; rank < ranks; ++rank) {
      ReplicaAgentOptions options;
      options.rank.replica = replica;
      options.rank.incarnation = incarnation;
      options.rank.shard_rank = rank;
      options.rank.buckets = {kElements / 2, kElements - kElements / 2};
      options.ranks = ranks;
      options.coordinator = coordinator;
      options.config = 5;
      options.held = {0, first_lineage(5, 1)};
      agents_.push_back(std::make_unique<ReplicaAgent>(std::move(options)));
    }
    std::vector<std::string> addresses;
    for (const auto& agent : agents_) {
      addresses.push_back(agent->address());
    }
    for (const auto& agent : agents_) {
      agent->start(addresses);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      threads_.emplace_back(
          [this, rank, &hashes, &steps] { train(rank, hashes, steps); });
    }
  }
  ~ToyReplica() { wait(); }
  ToyReplica(const ToyReplica&) = delete;
  ToyReplica& operator=(const ToyReplica&) = delete;
  void wait() { threads_.clear(); }
  void leave() { agents_.front()->leave(); }
  // Its connections end like those of a killed process, after a step that all its ranks have yet to
  // reach.
  void die(std::int64_t step) {
    dead_from_ = step;
    wait();
    agents_.clear();
  }
  int computed() const { return computed_; }
  int committed() const { return committed_; }

 private:
  void train(int rank, Hashes& hashes, const std::atomic<std::int64_t>& steps) {
    ToyModel model(rank);
    auto& agent = *agents_[static_cast<std::size_t>(rank)];
    const auto program = model.program();
    try {
      for (;;) {
        const auto task = agent.rank().next(program);
        if (!task || task->base.step >= steps) {
          break;
        }
        if (task->base.step >= dead_from_) {
          return;
        }
        model.gradients_of(task->samples, agent.rank().gradients());
        computed_ += task->samples.empty() ? 0 : 1;
        if (agent.rank().finish(*task, program)) {
          ++committed_;
          hashes.add(rank, task->base.step + 1, model.hash());
        }
      }
      agent.rank().end(program);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }

  std::vector<std::unique_ptr<ReplicaAgent>> agents_;
  std::atomic<std::int64_t> dead_from_{INT64_MAX};
  std::atomic<int> computed_{0};
  std::atomic<int> committed_{0};
  std::vector<std::jthread> threads_;
};

TEST(ReplicaAgents, TrainTogetherWithEqualBits) {
  const std::atomic<std::int64_t> steps{20};
  for (const int ranks : {1, 2}) {
    Coordination coordination(3);
    Hashes hashes;
    std::vector<std::unique_ptr<ToyReplica>> replicas;
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      replicas.push_back(std::make_unique<ToyReplica>(
          coordination.address(), hashes, replica, 100 + replica, ranks,
          steps));
    }
    for (const auto& replica : replicas) {
      replica->wait();
      EXPECT_EQ(replica->computed(), 20 * ranks);
    }
    EXPECT_EQ(hashes.last(), 20);
  }
}

// The sockets, memory and other descriptors that a child process would find open.
std::string inherited() {
  const std::unique_ptr<FILE, int (*)(FILE*)> listing(
      ::popen("ls -l /proc/self/fd", "r"), ::pclose);
  std::string found;
  std::array<char, 4096> line = {};
  while (std::fgets(line.data(), line.size(), listing.get()) != nullptr) {
    const std::string text = line.data();
    const auto arrow = text.find(" -> ");
    if (arrow == std::string::npos) {
      continue;
    }
    for (const char* kind : {"socket:", "anon_inode:", "memfd:"}) {
      const bool is_one = text.find(kind, arrow) != std::string::npos;
      found += is_one ? text.substr(arrow) : "";
    }
  }
  return found;
}

// A data loader's process that outlives its rank must not keep the rank's connections open.
TEST(ReplicaAgents, OpenNothingThatAChildProcessInherits) {
  const std::string before = inherited();
  std::atomic<std::int64_t> steps{INT64_MAX};
  Coordination coordination(2);
  Hashes hashes;
  ToyReplica one(coordination.address(), hashes, 0, 100, 2, steps);
  ToyReplica other(coordination.address(), hashes, 1, 101, 2, steps);
  while (hashes.last() < 5) {
    std::this_thread::yield();
  }
  EXPECT_EQ(inherited(), before);
  steps = hashes.last() + 20;
  one.wait();
  other.wait();
}

// Connects to rank 0 at that port of this host.
std::unique_ptr<ReplicaAgent> start_rank_1(std::uint16_t port_of_rank_0) {
  ReplicaAgentOptions options;
  options.rank.incarnation = 100;
  options.rank.shard_rank = 1;
  options.rank.buckets = {10};
  options.ranks = 2;
  auto agent = std::make_unique<ReplicaAgent>(std::move(options));
  agent->start({str("127.0.0.1 1 1 ", port_of_rank_0), agent->address()});
  return agent;
}

TEST(ReplicaAgents, DialRank0AgainWhenItHadNoRoomForThem) {
  auto listening = std::move(net::listen_on("127.0.0.1")).value();
  const auto agent = start_rank_1(listening.port);
  for (int i = 0; i < 4; ++i) {
    pollfd dialled{listening.socket.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&dialled, 1, 20000), 1) << "dialled " << i << " times";
    const Descriptor closed_at_once(
        ::accept4(listening.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(closed_at_once.open());
  }
}

// A listener that has no room for a rank may have sent its greeting before.
TEST(ReplicaAgents, DialRank0AgainWhenItClosesWhatItHasGreeted) {
  net::Loop loop;
  int dialled = 0;
  const auto listener = net::Listener::listen(
                            loop, {"127.0.0.1", 0}, {},
                            {.on_connection =
                                 [&](net::ConnectionHandle /*ends here*/) {
                                   if (++dialled == 4) {
                                     loop.stop();
                                   }
                                 }})
                            .value();
  const auto agent = start_rank_1(listener->address().port);
  const auto limit = loop.after(std::chrono::seconds(20), [&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(dialled, 4);
}

TEST(ReplicaAgents, LeaveWhileTheyWaitForOthers) {
  const std::atomic<std::int64_t> steps{1000000};
  Coordination coordination(2, 2);
  Hashes hashes;
  ToyReplica first(coordination.address(), hashes, 0, 100, 1, steps);
  first.leave();  // Nothing has begun yet.
  first.wait();
  ToyReplica one(coordination.address(), hashes, 0, 101, 1, steps);
  ToyReplica other(coordination.address(), hashes, 1, 102, 1, steps);
  while (hashes.last() < 5) {
    std::this_thread::yield();
  }
  one.leave();
  one.wait();
  other.leave();  // The other replica alone is too few.
  other.wait();
}

// The only rank of a replica.
std::unique_ptr<ReplicaAgent> start_alone(
    const net::HostAddress& coordinator,
    Incarnation incarnation,
    const std::string& host,
    const StateId& held,
    std::function<void(const char* point, std::int64_t)> reach = {}) {
  ReplicaAgentOptions options;
  options.rank.hooks.reach = std::move(reach);
  options.rank.incarnation = incarnation;
  options.rank.host = host;
  options.rank.buckets = {10};
  options.coordinator = coordinator;
  options.config = 5;
  options.held = held;
  auto agent = std::make_unique<ReplicaAgent>(std::move(options));
  agent->start({agent->address()});
  return agent;
}

// Why the replica ends instead of being given something to compute.
Status end_of(ReplicaAgent& agent) {
  try {
    const auto task = agent.rank().next({});
    return {ErrorCode::kFailedPrecondition, task ? "it computes" : "it left"};
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
}

// A job with another log on a folder with checkpoints would be started again and again.
TEST(ReplicaAgents, ThatHoldWhatANewLogDoesNotKnowEndAsWrongUsage) {
  Coordination coordination(2);
  const auto agent =
      start_alone(coordination.address(), 100, "127.0.0.1", {5, {7, 7}});
  const auto end = end_of(*agent);
  EXPECT_THAT(
      end.message(),
      HasSubstr("expected the log of the run that has made step 5"));
  // By this the launcher knows it.
  EXPECT_THAT(
      end.message(), HasSubstr("; starting this replica again does not help"));
  EXPECT_EQ(end.code(), ErrorCode::kInvalidArgument);
}

// Started again, each would replace the other one without end.
TEST(ReplicaAgents, WhoseNumberAnotherHostHasTooEndAsWrongUsage) {
  Coordination coordination(1);
  const StateId first{0, first_lineage(5, 1)};
  const auto old = start_alone(coordination.address(), 100, "127.0.0.1", first);
  ASSERT_TRUE(old->rank().next({}));
  const auto newer =
      start_alone(coordination.address(), 101, "127.0.0.2", first);
  const auto end = end_of(*old);
  EXPECT_THAT(
      end.message(),
      HasSubstr("SHERD_REPLICA 0 on one host only, found it on 127.0.0.1 and "
                "127.0.0.2"));
  EXPECT_EQ(end.code(), ErrorCode::kInvalidArgument);
}

// The only rank of a replica, whose program was interrupted while it waited for its first step. The
// step is decided after that.
class InterruptedRank {
 public:
  explicit InterruptedRank(const net::HostAddress& coordinator)
      : agent_(start_alone(
            coordinator,
            100,
            "127.0.0.1",
            {0, first_lineage(5, 1)},
            [this](const char* point, std::int64_t) {
              if (std::string_view(point) == "reduced") {
                interrupted_.wait(false);
              }
            })) {
    const auto task = rank().next(program());
    set_interrupt_check([] { return true; });
    EXPECT_THROW(rank().finish(*task, program()), Error);
    set_interrupt_check(nullptr);
    interrupted_.test_and_set();
    interrupted_.notify_all();
  }
  RankAgent& rank() { return agent_->rank(); }
  TrainingCallbacks program() {
    return {
        .snapshot = [] { return std::string(); },
        .restore = [](const StateId&, std::string_view) {},
        .update = [this](const Commit&, const float*) { ++steps_made_; }};
  }
  int steps_made() const { return steps_made_; }

 private:
  std::atomic_flag interrupted_;
  int steps_made_ = 0;
  const std::unique_ptr<ReplicaAgent> agent_;
};

TEST(ReplicaAgents, MakeTheStepThatTheyWereInterruptedInBeforeTheNextOne) {
  Coordination coordination(1);
  InterruptedRank one(coordination.address());
  const auto next = one.rank().next(one.program());
  ASSERT_TRUE(next);
  EXPECT_EQ(next->base.step, 1);
  EXPECT_EQ(one.steps_made(), 1);
}

TEST(ReplicaAgents, MakeTheStepThatTheyWereInterruptedInBeforeTheyEnd) {
  Coordination coordination(1);
  InterruptedRank one(coordination.address());
  one.rank().end(one.program());
  EXPECT_EQ(one.steps_made(), 1);
}

TEST(ReplicaAgents, GoOnWithoutTheOneThatDiesAndTakeItBack) {
  for (const int ranks : {1, 2}) {
    std::atomic<std::int64_t> steps{INT64_MAX};
    Coordination coordination(3);
    Hashes hashes;
    std::vector<std::unique_ptr<ToyReplica>> replicas;
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      replicas.push_back(std::make_unique<ToyReplica>(
          coordination.address(), hashes, replica, 100 + replica, ranks,
          steps));
    }
    while (hashes.last() < 20) {
      std::this_thread::yield();
    }
    replicas[1]->die(hashes.last() + 50);
    const auto died = hashes.last();
    replicas.push_back(std::make_unique<ToyReplica>(
        coordination.address(), hashes, 1, 201, ranks, steps));
    while (replicas[3]->committed() < 5) {
      std::this_thread::yield();
    }
    steps = hashes.last() + 200;  // Nobody is there yet.
    for (const auto& replica : replicas) {
      replica->wait();
    }
    EXPECT_EQ(hashes.last(), steps);
    EXPECT_GT(replicas[3]->computed(), 0);
    std::printf(
        "died at %lld, its next life made %d steps\n",
        static_cast<long long>(died), replicas[3]->committed());
    // The survivors have computed each step once.
    EXPECT_LE(replicas[0]->computed(), steps * ranks);
    EXPECT_LE(replicas[2]->computed(), steps * ranks);
  }
}

}  // namespace
}  // namespace sherd::ft
