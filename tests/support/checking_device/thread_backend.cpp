// SPDX-License-Identifier: Apache-2.0
#include "support/checking_device/thread_backend.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "device/last_use.h"
#include "support/checking_device/checking_device.h"

namespace sherd::test {
namespace {

// What one rank contributes to a collective, without owning it.
struct Part {
  at::Tensor input;   // On the CPU, over the device's bytes.
  at::Tensor output;  // Likewise.
  // The splits of the input, by receiver.
  std::vector<std::int64_t> splits = {};
};

using Move = void (*)(std::vector<Part>& parts, int root);

at::Tensor cpu_view(const at::Tensor& tensor) {
  return at::from_blob(
      host_view(tensor.const_data_ptr()), {tensor.numel()},
      at::dtype(tensor.scalar_type()));
}

// In rank order or, backwards, from the last rank on.
template <bool kBackwards>
at::Tensor sum_of(const std::vector<Part>& parts) {
  const auto dtype = parts[0].input.scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto part = [&](std::size_t i) {
    return parts[kBackwards ? parts.size() - 1 - i : i].input;
  };
  auto sum = part(0).to(
      narrow ? at::kFloat : dtype, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    sum.add_(part(i).to(sum.scalar_type()));
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

template <bool kBackwards>
void move_reduce_scatter(std::vector<Part>& parts, int /*root*/) {
  const auto sum = sum_of<kBackwards>(parts);
  std::int64_t at = 0;
  for (const auto& to : parts) {
    to.output.copy_(sum.narrow(0, at, to.output.numel()));
    at += to.output.numel();
  }
}

template <bool kBackwards>
void move_all_reduce(std::vector<Part>& parts, int /*root*/) {
  const auto sum = sum_of<kBackwards>(parts);
  for (const auto& to : parts) {
    to.output.copy_(sum);
  }
}

template <bool kBackwards>
void move_reduce(std::vector<Part>& parts, int root) {
  parts[static_cast<std::size_t>(root)].output.copy_(sum_of<kBackwards>(parts));
}

void move_broadcast(std::vector<Part>& parts, int root) {
  const auto& from = parts[static_cast<std::size_t>(root)].input;
  for (const auto& to : parts) {
    if (to.output.const_data_ptr() != from.const_data_ptr()) {
      to.output.copy_(from);
    }
  }
}

void move_all_to_all(std::vector<Part>& parts, int /*root*/) {
  std::vector<std::int64_t> read(parts.size(), 0);
  for (std::size_t to = 0; to < parts.size(); ++to) {
    std::int64_t written = 0;
    for (std::size_t from = 0; from < parts.size(); ++from) {
      const auto numel = parts[from].splits.at(to);
      parts[to]
          .output.narrow(0, written, numel)
          .copy_(parts[from].input.narrow(0, read[from], numel));
      written += numel;
      read[from] += numel;
    }
    SHERD_ASSERT(written == parts[to].output.numel());
  }
}

// A participant has an index among the members, which are ranks of the network.
struct Collective {
  std::string communicator;
  std::string what;
  Move move = nullptr;
  int root = 0;
  std::vector<std::size_t> members;
  std::vector<Part> parts;
  std::vector<std::unique_ptr<AnnouncedWork>> announced;
  std::size_t arrived = 0;
};
using CollectivePtr = std::shared_ptr<Collective>;

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

}  // namespace

// Each rank makes the collectives that it has started one after the other, whatever their
// communicators, and each is made when it is the next one of all its members. So orders in which
// ranks wait for each other are detected even if timing would hide them.
struct ThreadNetwork::State {
  State(int count, bool backwards)
      : ranks(static_cast<std::size_t>(count)),
        sums_backwards(backwards),
        started(ranks, 0),
        elsewhere(ranks, 0),
        numbers(ranks),
        queues(ranks) {}

  const std::size_t ranks;
  const bool sums_backwards;
  mutable std::mutex mu;
  std::vector<std::int64_t> started;  // Indexed by rank.
  std::vector<std::int64_t> elsewhere;
  bool offers_memory = false;
  // The next number by rank and communicator; and, by both, the collectives that not all members
  // have started.
  std::vector<std::map<std::string, std::size_t>> numbers;
  std::map<std::pair<std::string, std::size_t>, CollectivePtr> open;
  // By rank; collectives that were not made yet.
  // For all communicators.
  std::vector<std::deque<CollectivePtr>> queues;
  std::string failure;
  // The ranks that aborted, by communicator.
  std::map<std::string, std::set<std::size_t>> aborted;

  // The rank, member `index`, has put the collective into its current stream.
  void start(
      std::size_t index,
      Collective mine,
      const Part& part,
      std::unique_ptr<AnnouncedWork> work) {
    const std::lock_guard lock(mu);
    const auto communicator = mine.communicator;
    TORCH_CHECK(failure.empty(), failure);
    const auto rank = mine.members.at(index);
    if (const auto found = aborted.find(communicator); found != aborted.end()) {
      TORCH_CHECK(!found->second.contains(rank), was_aborted(communicator));
      work->finish("");
      return;
    }
    ++started[rank];
    const std::pair key(communicator, numbers[rank][communicator]++);
    auto& known = open[key];
    if (known == nullptr) {
      mine.parts.resize(mine.members.size());
      mine.announced.resize(mine.members.size());
      known = std::make_shared<Collective>(std::move(mine));
    } else if (known->what != mine.what) {
      refuse_order(rank, mine.what, known->what);
    }
    const auto joined = known;
    joined->parts[index] = part;
    joined->announced[index] = std::move(work);
    queues[rank].push_back(joined);
    if (++joined->arrived == joined->members.size()) {
      open.erase(key);
    }
    while (make_one()) {
    }
    refuse_circle(rank);
  }

  // Ends the communicator's collectives: with an error on that rank, and with bytes that nothing
  // has moved on the others. On a GPU, where no host waits for them, these would not end, and the
  // other ranks would learn of the failure by messages.
  void abort(std::size_t rank, const std::string& communicator) {
    const std::lock_guard lock(mu);
    aborted[communicator].insert(rank);
    for (std::size_t other = 0; other < ranks; ++other) {
      std::erase_if(queues[other], [&](const CollectivePtr& collective) {
        const bool ends = collective->communicator == communicator;
        if (ends) {
          finish_on(
              *collective, other,
              other == rank ? was_aborted(communicator) : "");
        }
        return ends;
      });
    }
    std::erase_if(open, [&](const auto& each) {
      return each.first.first == communicator;
    });
    while (make_one()) {
    }
  }

 private:
  bool is_next(std::size_t rank, const CollectivePtr& collective) const {
    return !queues[rank].empty() && queues[rank].front() == collective;
  }

  // Makes a collective that is the next one of all its members. Returns whether there was one.
  bool make_one() {
    for (const auto& queue : queues) {
      if (queue.empty()) {
        continue;
      }
      const auto next = queue.front();
      if (std::ranges::all_of(next->members, [&](std::size_t member) {
            return is_next(member, next);
          })) {
        next->move(next->parts, next->root);
        finish(*next, "");
        for (const auto member : next->members) {
          queues[member].pop_front();
        }
        return true;
      }
    }
    return false;
  }

  // The rank waits for one that has begun another collective, and so on, back to the rank itself.
  void refuse_circle(std::size_t rank) {
    std::vector<std::size_t> waiting = {rank};
    for (std::size_t at = 0; at < waiting.size(); ++at) {
      const auto who = waiting[at];
      if (queues[who].empty()) {
        continue;
      }
      const auto& next = queues[who].front();
      for (const auto member : next->members) {
        if (queues[member].empty() || is_next(member, next)) {
          continue;
        }
        if (member == rank) {
          refuse_order(rank, queues[rank].front()->what, next->what);
        }
        if (std::ranges::find(waiting, member) == waiting.end()) {
          waiting.push_back(member);
        }
      }
    }
  }

  void refuse_order(
      std::size_t rank, const std::string& mine, const std::string& other) {
    fail(
        str("[checking device] ranks must start collectives in one order: "
            "rank ",
            rank, " starts ", mine, ", another rank has started ", other));
    TORCH_CHECK(false, failure);
  }

  void fail(const std::string& why) {
    failure = why;
    for (const auto& queue : queues) {
      for (const auto& collective : queue) {
        finish(*collective, why);
      }
    }
  }
  static std::string was_aborted(const std::string& communicator) {
    return str("[checking device] ", communicator, " was aborted");
  }
  static void finish_on(
      const Collective& collective, std::size_t rank, const std::string& why) {
    for (std::size_t i = 0; i < collective.members.size(); ++i) {
      if (collective.members[i] == rank && collective.announced[i]) {
        collective.announced[i]->finish(why);
      }
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
      int index,
      std::vector<std::size_t> members,
      std::string communicator)
      : Backend(index, static_cast<int>(members.size())),
        network_(std::move(network)),
        members_(std::move(members)),
        communicator_(std::move(communicator)) {}

  const std::string getBackendName() const override { return "threads"; }

  void abort() override {
    network_->abort(
        members_.at(static_cast<std::size_t>(getRank())), communicator_);
  }

  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override {
    const std::lock_guard lock(network_->mu);
    return network_->offers_memory;
  }
  void eagerConnectSingleDevice(at::Device /*device*/) override {
    connected_ = true;
  }
  // What is freed stays in the list, as nothing else is allocated there while a test looks.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    TORCH_CHECK(connected_, "expected a backend that is connected");
    const auto made = at::empty({size}, options);
    const std::lock_guard lock(network_->mu);
    memory_.push_back(device::Place::of(made));
    return made;
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
        "a reduce-scatter", options.asyncOp,
        sums<move_reduce_scatter<false>, move_reduce_scatter<true>>(), input,
        output);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    check_sum(options.reduceOp);
    return start(
        "an all-reduce", options.asyncOp,
        sums<move_all_reduce<false>, move_all_reduce<true>>(), tensors.at(0),
        tensors.at(0));
  }
  c10::intrusive_ptr<c10d::Work> reduce(
      std::vector<at::Tensor>& tensors,
      const c10d::ReduceOptions& options) override {
    check_sum(options.reduceOp);
    return start(
        "a reduce", options.asyncOp,
        sums<move_reduce<false>, move_reduce<true>>(), tensors.at(0),
        tensors.at(0), static_cast<int>(options.rootRank));
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    return start(
        "a broadcast", options.asyncOp, move_broadcast, tensors.at(0),
        tensors.at(0), static_cast<int>(options.rootRank));
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<std::int64_t>& output_splits,
      std::vector<std::int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override {
    TORCH_CHECK(
        input_splits.size() == members_.size() &&
        output_splits.size() == members_.size());
    return start(
        "an all-to-all", options.asyncOp, move_all_to_all, input, output, 0,
        input_splits);
  }

 private:
  template <Move kInOrder, Move kBackwards>
  Move sums() const {
    return network_->sums_backwards ? kBackwards : kInOrder;
  }

  static void check_sum(const c10d::ReduceOp& op) {
    TORCH_CHECK(op == c10d::ReduceOp::SUM, "expected a sum");
  }

  c10::intrusive_ptr<c10d::Work> start(
      const std::string& kind,
      bool async,
      Move move,
      const at::Tensor& input,
      const at::Tensor& output,
      int root = 0,
      const std::vector<std::int64_t>& splits = {}) {
    TORCH_CHECK(!async, "expected asyncOp = false, on the current stream");
    TORCH_CHECK(input.is_contiguous() && output.is_contiguous());
    // With splits the size differs by rank.
    const auto whole =
        splits.empty() ? std::max(input.nbytes(), output.nbytes()) : 0;
    const auto what =
        str(kind, " of ", whole, " bytes of ", communicator_,
            root > 0 ? str(" with root ", root) : "");
    const auto device = output.device();
    begin_operator(
        device, what,
        {{input.const_data_ptr(), input.nbytes(), AccessKind::kRead},
         {output.const_data_ptr(), output.nbytes(), AccessKind::kWrite}});
    count_elsewhere({device::Place::of(input), device::Place::of(output)});
    auto work = std::make_unique<AnnouncedWork>(device, what);
    Collective mine;
    mine.communicator = communicator_;
    mine.what = what;
    mine.move = move;
    mine.root = root;
    mine.members = members_;
    network_->start(
        static_cast<std::size_t>(getRank()), std::move(mine),
        {cpu_view(input), cpu_view(output), splits}, std::move(work));
    return c10::make_intrusive<DoneWork>();
  }

  void count_elsewhere(const std::vector<device::Place>& places) {
    const std::lock_guard lock(network_->mu);
    const auto is_ours = [&](const device::Place& place) {
      return std::ranges::any_of(memory_, [&](const device::Place& block) {
        return block.begin <= place.begin && place.end <= block.end;
      });
    };
    if (!memory_.empty() && !std::ranges::all_of(places, is_ours)) {
      ++network_->elsewhere.at(
          members_.at(static_cast<std::size_t>(getRank())));
    }
  }

  const std::shared_ptr<ThreadNetwork::State> network_;
  const std::vector<std::size_t> members_;
  const std::string communicator_;
  bool connected_ = false;
  std::vector<device::Place> memory_;  // That it has allocated.
};

}  // namespace

ThreadNetwork::ThreadNetwork(
    int ranks, std::chrono::milliseconds deadline, bool sums_backwards)
    : state_(std::make_shared<State>(ranks, sums_backwards)) {
  SHERD_ASSERT(ranks <= kCheckingDevices);
  set_announced_work_deadline(deadline);
}

ThreadNetwork::~ThreadNetwork() = default;

c10::intrusive_ptr<c10d::Backend> ThreadNetwork::backend(
    int rank, const std::string& communicator) {
  std::vector<int> all(state_->ranks);
  std::iota(all.begin(), all.end(), 0);
  return backend(rank, communicator, all);
}

c10::intrusive_ptr<c10d::Backend> ThreadNetwork::backend(
    int rank, const std::string& communicator, const std::vector<int>& ranks) {
  const auto place = std::ranges::find(ranks, rank);
  SHERD_ASSERT(place != ranks.end());
  return c10::make_intrusive<ThreadBackend>(
      state_, static_cast<int>(place - ranks.begin()),
      std::vector<std::size_t>(ranks.begin(), ranks.end()), communicator);
}

void ThreadNetwork::offer_memory() {
  const std::lock_guard lock(state_->mu);
  state_->offers_memory = true;
}

std::int64_t ThreadNetwork::started_elsewhere(int rank) const {
  const std::lock_guard lock(state_->mu);
  return state_->elsewhere.at(static_cast<std::size_t>(rank));
}

std::int64_t ThreadNetwork::started(int rank) const {
  const std::lock_guard lock(state_->mu);
  return state_->started.at(static_cast<std::size_t>(rank));
}

}  // namespace sherd::test
