// SPDX-License-Identifier: Apache-2.0
#include "support/threads_on_device.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <ATen/ops/empty.h>
#include "base/check.h"
#include "device/stream.h"

namespace sherd::test {
namespace {

using device::Stream;

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

// What a rank contributes to a collective, and up to where its stream has prepared it.
struct Part {
  at::Tensor input;
  std::optional<device::Event> ready;
  // By rank, where they get different elements.
  std::vector<std::int64_t> sent = {};
};

// The ranks of one communicator meet again and again, with what each contributes.
class Meeting {
 public:
  Meeting(
      std::size_t ranks,
      std::chrono::milliseconds deadline,
      std::function<void()> delay)
      : deadline_(deadline), delay_(std::move(delay)), parts_(ranks) {}

  void delay() const {
    if (delay_) {
      delay_();
    }
  }

  // Returns the contributions of all ranks once all have arrived.
  std::vector<Part> exchange(std::size_t rank, Part mine) {
    std::unique_lock lock(mu_);
    const auto round = round_;
    parts_[rank] = std::move(mine);
    if (++arrived_ == parts_.size()) {
      arrived_ = 0;
      ++round_;
      brought_ = parts_;
      all_came_.notify_all();
    } else if (!all_came_.wait_for(
                   lock, deadline_, [&] { return round_ != round; })) {
      throw Error("[threads_on_device] a rank did not come in time");
    }
    return brought_;
  }

 private:
  const std::chrono::milliseconds deadline_;
  const std::function<void()> delay_;
  std::mutex mu_;  // Guards the rest.
  std::condition_variable all_came_;
  std::vector<Part> parts_;
  // Stays until all have arrived again, which does not happen before every rank has returned with
  // it.
  std::vector<Part> brought_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
};

at::Tensor sum_of(
    const std::vector<Part>& parts, std::int64_t begin, std::int64_t numel) {
  const auto piece = [&](const Part& part) {
    return part.input.view(-1).narrow(0, begin, numel);
  };
  auto sum = piece(parts[0]).to(at::kFloat, /*non_blocking=*/false, true);
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    sum.add_(piece(parts[rank]));
  }
  return sum;
}

class ThreadBackend final : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<Meeting> meeting, int rank, int size)
      : Backend(rank, size), meeting_(std::move(meeting)) {}

  const std::string getBackendName() const override { return "threads"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& /*options*/) override {
    const auto numel = input.numel();
    return run(input, [&](const std::vector<Part>& parts) {
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const auto place = output.view(-1).narrow(
            0, static_cast<std::int64_t>(rank) * numel, numel);
        if (place.const_data_ptr() != parts[rank].input.const_data_ptr()) {
          place.copy_(parts[rank].input.view(-1));
        }
      }
      return at::Tensor();
    });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    check_sum(options.reduceOp);
    return run(
        input,
        [&](const std::vector<Part>& parts) {
          return sum_of(parts, getRank() * output.numel(), output.numel());
        },
        output);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    check_sum(options.reduceOp);
    auto& tensor = tensors.at(0);
    return run(
        tensor,
        [&](const std::vector<Part>& parts) {
          return sum_of(parts, 0, tensor.numel());
        },
        tensor);
  }
  c10::intrusive_ptr<c10d::Work> reduce(
      std::vector<at::Tensor>& tensors,
      const c10d::ReduceOptions& options) override {
    check_sum(options.reduceOp);
    auto& tensor = tensors.at(0);
    const bool is_root = getRank() == options.rootRank;
    return run(
        tensor,
        [&](const std::vector<Part>& parts) {
          return is_root ? sum_of(parts, 0, tensor.numel()) : at::Tensor();
        },
        tensor);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    auto& tensor = tensors.at(0);
    return run(tensor, [&](const std::vector<Part>& parts) {
      if (getRank() != options.rootRank) {
        tensor.view(-1).copy_(
            parts[static_cast<std::size_t>(options.rootRank)].input.view(-1));
      }
      return at::Tensor();
    });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<std::int64_t>& received,
      std::vector<std::int64_t>& sent,
      const c10d::AllToAllOptions& /*options*/) override {
    const auto me = static_cast<std::size_t>(getRank());
    return run(
        input,
        [&](const std::vector<Part>& parts) {
          std::int64_t end = 0;
          for (std::size_t rank = 0; rank < parts.size(); ++rank) {
            const auto& theirs = parts[rank].sent;
            const auto begin = std::accumulate(
                theirs.begin(), theirs.begin() + getRank(), std::int64_t{0});
            output.view(-1)
                .narrow(0, end, received[rank])
                .copy_(parts[rank].input.view(-1).narrow(0, begin, theirs[me]));
            end += received[rank];
          }
          return at::Tensor();
        },
        {}, sent);
  }

 private:
  static void check_sum(const c10d::ReduceOp& op) {
    TORCH_CHECK(op == c10d::ReduceOp::SUM, "expected a sum");
  }

  // `read` reads the contributions of all ranks; what it returns is written to `result` after all
  // have read.
  c10::intrusive_ptr<c10d::Work> run(
      const at::Tensor& input,
      const std::function<at::Tensor(const std::vector<Part>&)>& read,
      const at::Tensor& result = {},
      const std::vector<std::int64_t>& sent = {}) {
    const auto rank = static_cast<std::size_t>(getRank());
    const auto stream = Stream::current(input.device());
    const auto meet = [&] {
      auto parts = meeting_->exchange(rank, {input, stream.record(), sent});
      for (const auto& part : parts) {
        stream.wait(*part.ready);
      }
      return parts;
    };
    const auto parts = meet();
    meeting_->delay();
    const auto sum = read(parts);
    meeting_->delay();
    (void)meet();
    if (sum.defined()) {
      result.view(-1).copy_(sum);
    }
    return c10::make_intrusive<DoneWork>();
  }

  const std::shared_ptr<Meeting> meeting_;
};

}  // namespace

struct ThreadsOnDevice::State {
  std::chrono::milliseconds deadline{};
  std::function<void()> delay;
  std::mutex mu;  // Guards the rest.
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
};

ThreadsOnDevice::ThreadsOnDevice(
    std::chrono::milliseconds deadline, std::function<void()> delay)
    : state_(std::make_shared<State>()) {
  state_->deadline = deadline;
  state_->delay = std::move(delay);
}

ThreadsOnDevice::~ThreadsOnDevice() = default;

c10::intrusive_ptr<c10d::Backend> ThreadsOnDevice::backend(
    int rank, const std::string& name, const std::vector<int>& ranks) {
  const auto place = std::ranges::find(ranks, rank);
  SHERD_ASSERT(place != ranks.end());
  std::string key = name;
  for (const auto member : ranks) {
    key += "," + std::to_string(member);
  }
  const std::lock_guard lock(state_->mu);
  auto& meeting = state_->meetings[key];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>(
        ranks.size(), state_->deadline, state_->delay);
  }
  return c10::make_intrusive<ThreadBackend>(
      meeting, static_cast<int>(place - ranks.begin()),
      static_cast<int>(ranks.size()));
}

}  // namespace sherd::test
