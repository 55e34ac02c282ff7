// SPDX-License-Identifier: Apache-2.0
#include "ft/toy_rank.h"

#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "ft/replica/gradient_check.h"
#include "ft/replica/replica_agent.h"
#include "ft/toy_model.h"
#include "support/delay.h"

namespace sherd::ft::test {
namespace {

constexpr std::uint64_t kConfig = 5;

// -1 if there is no descriptor left for reading the folder.
int files_in(const char* folder) {
  std::error_code error;
  const std::filesystem::directory_iterator files(folder, error);
  return error ? -1 : static_cast<int>(std::distance(begin(files), end(files)));
}

std::int64_t resident_bytes() {
  std::ifstream sizes("/proc/self/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  sizes >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// The channel to the test.
class Line {
 public:
  explicit Line(int socket) : socket_(socket) {}

  void tell(TraceEvent event) const {
    event.at = clock_.now();
    const auto bytes = bytes_of(event);
    (void)::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // The next message of the test.
  std::string hear() const {
    std::array<char, kTraceEventBytesMax> bytes{};
    const auto count = ::recv(socket_, bytes.data(), bytes.size(), 0);
    if (count <= 0) {
      ::_exit(3);  // The test is gone.
    }
    return {bytes.data(), static_cast<std::size_t>(count)};
  }
  std::string ask(const TraceEvent& event) {
    const std::lock_guard lock(mutex_);
    tell(event);
    return hear();
  }

 private:
  int socket_;
  SteadyClock clock_;
  std::mutex mutex_;  // One request at a time.
};

class ToyRank {
 public:
  ToyRank(const ToyRankOptions& options, int socket)
      : options_(options),
        line_(socket),
        model_(elements(), options.rank),
        check_(check_options(options)) {}

  int run() {
    try {
      start();
      train();
      agent_->rank().end(program());
      tell(TraceEvent::Kind::kDone);
      agent_.reset();
      return 0;
    } catch (const std::exception& error) {
      TraceEvent event;
      event.kind = TraceEvent::Kind::kFailed;
      event.text = error.what();
      line_.tell(event);
      return 1;
    }
  }

 private:
  static GradientCheck::Options check_options(const ToyRankOptions& options) {
    return {
        .non_finite = options.bad_gradients_stop ? GradientPolicy::kStop
                                                 : GradientPolicy::kLeaveOut};
  }

  std::int64_t elements() const {
    std::int64_t sum = 0;
    for (const auto count : options_.buckets) {
      sum += count;
    }
    return sum;
  }

  void start() {
    ReplicaAgentOptions options;
    options.rank.replica = options_.replica;
    options.rank.incarnation = options_.incarnation;
    options.rank.shard_rank = options_.rank;
    options.rank.security = net::security_of(options_.secret_file, {});
    options.rank.buckets = options_.buckets;
    for (std::size_t i = 0; i < options_.buckets.size(); ++i) {
      options.rank.bucket_names.push_back(str("unit ", i));
    }
    options.rank.fetch_bytes_per_s_max = options_.fetch_bytes_per_s_max;
    options.rank.sums_bytes_max = options_.sums_bytes_max;
    options.warms_up = options_.warms_up;
    options.rank.hooks.reach = [this](const char* point, std::int64_t step) {
      reach(point, step);
    };
    // A rank that may alter a sum shares no memory.
    if (std::any_of(
            options_.armed.begin(), options_.armed.end(),
            [](const auto& armed) { return armed.first == "sum"; })) {
      options.rank.hooks.spoil = [this](std::int64_t step, float* sum) {
        return spoil(step, sum);
      };
    }
    options.rank.digest_every = options_.digest_every;
    options.rank.hooks.route = options_.route;
    options.ranks = options_.ranks;
    options.coordinator = options_.coordinator;
    options.config = options_.config;
    options.held = first_state();
    agent_ = std::make_unique<ReplicaAgent>(std::move(options));
    TraceEvent event;
    event.kind = TraceEvent::Kind::kAddress;
    event.text = agent_->address();
    std::istringstream all(line_.ask(event));
    std::vector<std::string> addresses;
    for (std::string one; std::getline(all, one);) {
      addresses.push_back(one);
    }
    agent_->start(addresses);
  }

  void train() {
    const auto does = program();
    for (;;) {
      reach("idle", last_ + 1);
      const auto task = agent_->rank().next(does);
      if (!task) {
        return;
      }
      last_ = task->base.step;
      tell_held(task->base);
      if (last_ >= options_.steps->get()) {
        return;
      }
      compute(*task);
      if (const auto fault = fault_of(*task)) {
        agent_->rank().give(
            *task, 0);  // Other ranks have reduced some of it by then.
        (void)agent_->rank().refuse(*task, *fault, does);
      } else {
        (void)agent_->rank().finish(*task, does);
      }
    }
  }

  std::optional<GradientFault> fault_of(const ComputeTask& task) {
    if (task.samples.empty()) {
      return std::nullopt;
    }
    check_.begin(1);
    (void)check_.inspect(
        0, {agent_->rank().gradients(), static_cast<std::size_t>(elements())});
    return check_.finish();
  }

  void compute(const ComputeTask& task) {
    if (task.samples.empty()) {
      return;
    }
    TraceEvent event;
    event.kind = TraceEvent::Kind::kComputes;
    event.state = task.base;
    for (const auto& range : task.samples) {
      event.samples += range.size();
    }
    line_.tell(event);
    if (leaves_at_ == task.base.step) {
      agent_->leave();
    }
    reach("forward", task.base.step + 1);
    sherd::test::be_late(options_.step_time / 2);
    model_.gradients_of(task.samples, agent_->rank().gradients());
    reach("backward", task.base.step + 1);
    sherd::test::be_late(options_.step_time / 2);
    reach("gradients", task.base.step + 1);
  }

  TrainingCallbacks program() {
    return {
        .snapshot =
            [this] {
              return model_.snapshot() +
                  std::string(options_.ballast_bytes, 'b');
            },
        .restore =
            [this](const StateId&, std::string_view bytes) {
              model_.restore(
                  bytes.substr(0, bytes.size() - options_.ballast_bytes));
            },
        .update =
            [this](const Commit& commit, const float* gradients) {
              reach("update", commit.result.step);
              model_.update(gradients);
              tell_held(commit.result);
              reach("updated", commit.result.step);
            },
        .digest = [this] { return model_.hash(); }};
  }

  void tell_held(const StateId& state) const {
    TraceEvent event;
    event.kind = TraceEvent::Kind::kHolds;
    event.state = state;
    event.hash = model_.hash();
    event.descriptors = files_in("/proc/self/fd");
    event.threads = files_in("/proc/self/task");
    event.resident_bytes = resident_bytes();
    line_.tell(event);
  }
  void tell(TraceEvent::Kind kind) const {
    TraceEvent event;
    event.kind = kind;
    line_.tell(event);
  }

  void reach(const std::string& point, std::int64_t step) {
    if (is_armed(point, step)) {
      obey(ask(point, step));
    }
  }
  bool is_armed(const std::string& point, std::int64_t step) const {
    return options_.armed.contains({point, step}) ||
        options_.armed.contains({point, -1});
  }
  std::string ask(const std::string& point, std::int64_t step) {
    TraceEvent event;
    event.kind = TraceEvent::Kind::kReached;
    event.state.step = step;
    event.text = point;
    return line_.ask(event);
  }
  bool spoil(std::int64_t step, float* sum) {
    const bool flips = is_armed("sum", step) && ask("sum", step) == "flip sum";
    if (flips) {
      sum[1] += 1;
    }
    return flips;
  }

  // Does anything that a program might do in the middle of its work.
  void obey(const std::string& order) {
    if (order == "throw") {
      throw Error("[toy] the user's program has failed");
    }
    if (order == "exit") {
      ::_exit(0);
    }
    if (order == "segv") {
      ::signal(SIGSEGV, SIG_DFL);
      ::raise(SIGSEGV);
    }
    if (order == "abort") {
      std::abort();
    }
    if (order == "leave") {
      agent_->leave();
    }
    if (order.starts_with("leave in ")) {
      leaves_at_ = last_ + std::stoll(order.substr(9));
    }
    if (order == "flip gradient") {
      agent_->rank().gradients()[1] += 1;
    }
    if (order == "nan gradient" || order == "spike gradient") {
      agent_->rank().gradients()[elements() - 1] = order == "nan gradient"
          ? std::numeric_limits<float>::quiet_NaN()
          : 1e7F;
    }
    if (order == "flip parameter") {
      model_.flip_bit(1);
    }
    if (order.starts_with("sleep ")) {
      sherd::test::be_late(
          std::chrono::milliseconds(std::stoll(order.substr(6))));
    }
  }

  const ToyRankOptions options_;
  Line line_;
  ToyModel model_;
  GradientCheck check_;
  std::unique_ptr<ReplicaAgent> agent_;
  std::int64_t last_ = 0;
  std::int64_t leaves_at_ = -1;
};

}  // namespace

StateId first_state() { return {0, first_lineage(kConfig, 1)}; }

std::string bytes_of(const TraceEvent& event) {
  return str(
      static_cast<int>(event.kind), ' ', event.at.count(), ' ',
      event.state.step, ' ', event.state.lineage.high, ' ',
      event.state.lineage.low, ' ', event.hash, ' ', event.samples, ' ',
      event.descriptors, ' ', event.threads, ' ', event.resident_bytes, ' ',
      event.text.substr(0, kTraceEventBytesMax / 2));
}

TraceEvent trace_event_of(const std::string& bytes) {
  TraceEvent event;
  int kind = 0;
  Instant::rep at = 0;
  std::istringstream in(bytes);
  in >> kind >> at >> event.state.step >> event.state.lineage.high >>
      event.state.lineage.low >> event.hash >> event.samples >>
      event.descriptors >> event.threads >> event.resident_bytes;
  SHERD_CHECK(!in.fail(), "[toy] expected a tale, found \"", bytes, "\"");
  event.kind = static_cast<TraceEvent::Kind>(kind);
  event.at = Instant(at);
  in.get();
  std::getline(in, event.text, '\0');
  return event;
}

int run_toy_rank(const ToyRankOptions& options, int socket) {
  return ToyRank(options, socket).run();
}

}  // namespace sherd::ft::test
