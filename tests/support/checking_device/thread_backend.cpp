// SPDX-License-Identifier: Apache-2.0
#include "support/checking_device/thread_backend.h"

#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "support/checking_device/checking_device.h"

namespace sherd::test {
namespace {

// What one rank brings to a collective, without owning it.
struct Part {
  at::Tensor input;   // On the CPU, over the device's bytes.
  at::Tensor output;  // Likewise.
};

using Move = void (*)(std::vector<Part>& parts, int root);

at::Tensor cpu_view(const at::Tensor& tensor) {
  return at::from_blob(
      host_view(tensor.const_data_ptr()), {tensor.numel()},
      at::dtype(tensor.scalar_type()));
}

at::Tensor sum_in_order(const std::vector<Part>& parts) {
  const auto dtype = parts[0].input.scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  auto sum = parts[0].input.to(
      narrow ? at::kFloat : dtype, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t r = 1; r < parts.size(); ++r) {
    sum.add_(parts[r].input.to(sum.scalar_type()));
  }
  return sum.to(dtype);
}

void move_all_gather(std::vector<Part>& parts, int /*root*/) {
  for (const auto& to : parts) {
    std::int64_t at = 0;
    for (const auto& from : parts) {
      const auto place = to.output.narrow(0, at, from.input.numel());
      if (place.const_data_ptr() != from.input.const_data_ptr()) {
        place.copy_(from.input);
      }
      at += from.input.numel();
    }
  }
}

void move_reduce_scatter(std::vector<Part>& parts, int /*root*/) {
  const auto sum = sum_in_order(parts);
  std::int64_t at = 0;
  for (const auto& to : parts) {
    to.output.copy_(sum.narrow(0, at, to.output.numel()));
    at += to.output.numel();
  }
}

void move_all_reduce(std::vector<Part>& parts, int /*root*/) {
  const auto sum = sum_in_order(parts);
  for (const auto& to : parts) {
    to.output.copy_(sum);
  }
}

void move_reduce(std::vector<Part>& parts, int root) {
  parts[static_cast<std::size_t>(root)].output.copy_(sum_in_order(parts));
}

void move_broadcast(std::vector<Part>& parts, int root) {
  const auto& from = parts[static_cast<std::size_t>(root)].input;
  for (const auto& to : parts) {
    if (to.output.const_data_ptr() != from.const_data_ptr()) {
      to.output.copy_(from);
    }
  }
}

// Of a rank: `input` and `output` may be one tensor.
struct Collective {
  std::string what;
  Move move = nullptr;
  int root = 0;
  std::vector<Part> parts;
  std::vector<std::unique_ptr<AnnouncedWork>> announced;  // By rank.
  int arrived = 0;
};

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

}  // namespace

struct ThreadNetwork::State {
  explicit State(int count)
      : ranks(static_cast<std::size_t>(count)), next(ranks, 0) {}

  const std::size_t ranks;
  mutable std::mutex mu;
  std::deque<Collective> collectives;  // In the order of the first to start.
  std::vector<std::size_t> next;       // By rank.
  std::string failure;

  // The rank has put it into its current stream.
  void start(
      std::size_t rank,
      Collective mine,
      const Part& part,
      std::unique_ptr<AnnouncedWork> work) {
    const std::lock_guard lock(mu);
    TORCH_CHECK(failure.empty(), failure);
    const auto n = next[rank]++;
    if (n == collectives.size()) {
      collectives.push_back(std::move(mine));
      collectives.back().parts.resize(ranks);
      collectives.back().announced.resize(ranks);
    } else if (collectives[n].what != mine.what) {
      fail(
          str("[checking device] ranks must start collectives in one order: "
              "as number ",
              n, " rank ", rank, " starts ", mine.what,
              ", another rank has started ", collectives[n].what));
      TORCH_CHECK(false, failure);
    }
    auto& joined = collectives[n];
    joined.parts[rank] = part;
    joined.announced[rank] = std::move(work);
    if (++joined.arrived == static_cast<int>(ranks)) {
      joined.move(joined.parts, joined.root);
      finish(joined, "");
      joined.announced.clear();
      joined.parts.clear();
    }
  }

  void abort(const std::string& why) {
    const std::lock_guard lock(mu);
    if (failure.empty()) {
      fail(why);
    }
  }

 private:
  void fail(const std::string& why) {
    failure = why;
    for (const auto& collective : collectives) {
      finish(collective, why);
    }
  }
  static void finish(const Collective& collective, const std::string& why) {
    for (const auto& work : collective.announced) {
      if (work) {
        work->finish(why);
      }
    }
  }
};

namespace {

class ThreadBackend final : public c10d::Backend {
 public:
  ThreadBackend(
      std::shared_ptr<ThreadNetwork::State> network,
      int rank,
      std::string communicator)
      : Backend(rank, static_cast<int>(network->ranks)),
        network_(std::move(network)),
        communicator_(std::move(communicator)) {}

  const std::string getBackendName() const override { return "threads"; }

  void abort() override {
    network_->abort(str("[checking device] ", communicator_, " was aborted"));
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    TORCH_CHECK(output.numel() == input.numel() * getSize());
    return start(
        "an all-gather", options.asyncOp, move_all_gather, input, output);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(input.numel() == output.numel() * getSize());
    check_sum(options.reduceOp);
    return start(
        "a reduce-scatter", options.asyncOp, move_reduce_scatter, input,
        output);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    check_sum(options.reduceOp);
    return start(
        "an all-reduce", options.asyncOp, move_all_reduce, tensors.at(0),
        tensors.at(0));
  }
  c10::intrusive_ptr<c10d::Work> reduce(
      std::vector<at::Tensor>& tensors,
      const c10d::ReduceOptions& options) override {
    check_sum(options.reduceOp);
    return start(
        "a reduce", options.asyncOp, move_reduce, tensors.at(0), tensors.at(0),
        static_cast<int>(options.rootRank));
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    return start(
        "a broadcast", options.asyncOp, move_broadcast, tensors.at(0),
        tensors.at(0), static_cast<int>(options.rootRank));
  }

 private:
  static void check_sum(const c10d::ReduceOp& op) {
    TORCH_CHECK(op == c10d::ReduceOp::SUM, "expected a sum");
  }

  c10::intrusive_ptr<c10d::Work> start(
      const std::string& kind,
      bool async,
      Move move,
      const at::Tensor& input,
      const at::Tensor& output,
      int root = 0) {
    TORCH_CHECK(!async, "expected asyncOp = false, on the current stream");
    TORCH_CHECK(input.is_contiguous() && output.is_contiguous());
    const auto whole = std::max(input.nbytes(), output.nbytes());
    const auto what =
        str(kind, " of ", whole, " bytes of ", communicator_,
            root > 0 ? str(" with root ", root) : "");
    const auto device = output.device();
    begin_operator(
        device, what,
        {{input.const_data_ptr(), input.nbytes(), AccessKind::kRead},
         {output.const_data_ptr(), output.nbytes(), AccessKind::kWrite}});
    auto work = std::make_unique<AnnouncedWork>(device, what);
    Collective mine;
    mine.what = what;
    mine.move = move;
    mine.root = root;
    network_->start(
        static_cast<std::size_t>(getRank()), std::move(mine),
        {cpu_view(input), cpu_view(output)}, std::move(work));
    return c10::make_intrusive<DoneWork>();
  }

  const std::shared_ptr<ThreadNetwork::State> network_;
  const std::string communicator_;
};

}  // namespace

ThreadNetwork::ThreadNetwork(int ranks, std::chrono::milliseconds deadline)
    : state_(std::make_shared<State>(ranks)) {
  SHERD_ASSERT(ranks <= kCheckingDevices);
  set_announced_work_deadline(deadline);
}

ThreadNetwork::~ThreadNetwork() = default;

c10::intrusive_ptr<c10d::Backend> ThreadNetwork::backend(
    int rank, const std::string& communicator) {
  return c10::make_intrusive<ThreadBackend>(state_, rank, communicator);
}

std::int64_t ThreadNetwork::started(int rank) const {
  const std::lock_guard lock(state_->mu);
  return static_cast<std::int64_t>(
      state_->next.at(static_cast<std::size_t>(rank)));
}

}  // namespace sherd::test
