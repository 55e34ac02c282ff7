// SPDX-License-Identifier: Apache-2.0
#include "ft/disk_rank.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>
#include <ATen/CPUGeneratorImpl.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/optim/adamw.h>
#include <torch/torch.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device_ranks.h"
#include "device/stream.h"
#include "support/delay.h"

namespace {

using sherd::ft::test::DiskFault;

// The fault of this process.
DiskFault fault = DiskFault::kNone;
std::string fault_at;
sherd::ft::test::SharedNumber* kills_left = nullptr;
int fault_release = -1;

bool concerns(std::string_view path) {
  return fault != DiskFault::kNone &&
      path.find(fault_at) != std::string_view::npos;
}

bool concerns(int file) {
  if (fault == DiskFault::kNone) {
    return false;
  }
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const auto size = ::readlink(link.c_str(), path, sizeof path);
  return size > 0 && concerns({path, static_cast<std::size_t>(size)});
}

}  // namespace

// These replace the C library's functions in this program.
extern "C" {

ssize_t write(int file, const void* bytes, size_t count) {
  if (fault == DiskFault::kFull && concerns(file)) {
    errno = ENOSPC;
    return -1;
  }
  if (fault == DiskFault::kKillInWrite && count > 1 && concerns(file) &&
      kills_left->take_one()) {
    ::syscall(SYS_write, file, bytes, count / 2);
    ::raise(SIGKILL);
  }
  return ::syscall(SYS_write, file, bytes, count);
}

int fsync(int file) {
  if (fault == DiskFault::kHang && concerns(file)) {
    char nothing = 0;
    while (::read(fault_release, &nothing, 1) > 0) {
    }
  }
  return static_cast<int>(::syscall(SYS_fsync, file));
}

int rename(const char* from, const char* to) noexcept {
  if (fault == DiskFault::kKillBeforeRename && concerns(from) &&
      kills_left->take_one()) {
    ::raise(SIGKILL);
  }
  return static_cast<int>(::syscall(SYS_rename, from, to));
}
}

namespace sherd::ft::test {
namespace {

void tell(const DiskRankOptions& options, int rank, const std::string& what) {
  auto line = str(options.replica, ' ', rank, ' ', options.life, ' ', what);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';  // Short enough to be written in one piece.
  ::syscall(SYS_write, options.tell, line.data(), line.size());
}

constexpr std::int64_t kVocabulary = 11;

// Predicts each token's successor. No generator draws its initial values, since threads would share
// it.
struct DiskModelImpl : torch::nn::Module {
  torch::nn::Embedding tokens{nullptr};
  torch::nn::Linear hidden{nullptr}, out{nullptr};
  explicit DiskModelImpl(std::int64_t width)
      : tokens(register_module(
            "tokens", torch::nn::Embedding(kVocabulary, width))),
        hidden(register_module("hidden", torch::nn::Linear(width, 2 * width))),
        out(register_module("out", torch::nn::Linear(2 * width, kVocabulary))) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kFloat)
                          .mul(1.7)
                          .sin()
                          .mul(0.4)
                          .view(parameter.sizes()));
    }
  }
  torch::Tensor loss(const torch::Tensor& ids) {
    const auto guesses = out(torch::tanh(hidden(tokens(ids.slice(1, 0, -1)))));
    return torch::nn::functional::cross_entropy(
        guesses.flatten(0, 1), ids.slice(1, 1).flatten());
  }
};
TORCH_MODULE(DiskModel);

DiskModel model_on(c10::Device device, int width) {
  DiskModel model(width);
  model->to(device);
  return model;
}

class DiskRank {
 public:
  DiskRank(
      const DiskRankOptions& options,
      const World& world,
      c10::Device device = c10::kCPU)
      : options_(options),
        world_(world),
        device_(device),
        model_(model_on(device, options.width)),
        fsdp_(fully_shard(*model_, world_)),
        adamw_(fsdp_.named_parameters(), {.learning_rate = 1e-2}) {
    state_.add(fsdp_.named_parameters());
    state_.add("adamw", adamw_, fsdp_.named_parameters());
  }

  void run() {
    ReplicaCheckpoints checkpoints(
        world_, state_,
        {.folder = options_.folder,
         .save_every = options_.save_every,
         .keep_last = options_.keep});
    auto options = SessionOptions::from_environment();
    options.config = str("width ", options_.width);
    options.digest_every = 1;
    options.held = checkpoints.load();
    if (!options.held.empty()) {
      tell(str("loaded ", hash(), ' ', options.held));
    }
    ReplicaSession session(
        world_, fsdp_.named_parameters(), state_,
        [this](std::int64_t step) { update(step); }, options);
    while (const auto plan = session.begin_step()) {
      if (options_.flip_at == 0 || session.step() != options_.flip_at) {
        tell(str("holds ", hash(), ' ', session.state_name()));
      }
      checkpoints.save_if_due(session, *plan);
      if (plan->step > options_.steps) {
        break;
      }
      // As a program might do at any time between steps, and if there is nothing to compute.
      if (plan->step % 3 == 0 || plan->samples.empty()) {
        evaluate();
      }
      if (!plan->samples.empty()) {
        compute(*plan, session);
      }
      (void)session.finish_step();
      tell(str("made ", session.step()));
    }
    checkpoints.save(session);
    session.close();
    checkpoints.wait();
    tell("done");
    fsdp_.close();
  }

  void tell(const std::string& what) const {
    test::tell(options_, world_.rank(), what);
  }

 private:
  void evaluate() {
    const torch::NoGradGuard no_grad;
    (void)model_->loss(torch::zeros(
        {1, 2}, torch::TensorOptions(torch::kLong).device(device_)));
  }

  void compute(const TrainingStep& plan, ReplicaSession& session) {
    sherd::test::be_late(std::chrono::milliseconds(5));
    auto random = at::make_generator<at::CPUGeneratorImpl>(
        static_cast<std::uint64_t>(plan.samples.front().begin));
    const auto ids =
        torch::randint(0, kVocabulary, {2, 9}, random, torch::kLong)
            .to(device_);
    auto loss = model_->loss(ids);
    if (plan.step == options_.nan_at) {
      loss = loss * std::numeric_limits<float>::quiet_NaN();
    }
    session.last_backward();
    loss.backward();
  }

  void update(std::int64_t step) {
    fsdp_.clip_grad_norm(1.0);
    if (step == options_.flip_at) {
      const torch::NoGradGuard no_grad;
      fsdp_.named_parameters().items.front().slice.narrow(0, 0, 1).add_(1);
    }
    adamw_.step();
  }

  // The hash of this rank's part of everything that defines a step.
  std::uint64_t hash() {
    Hash64 hash;
    const auto add = [&hash](const at::Tensor& of) {
      const auto tensor = of.detach().cpu();
      hash.add(
          {static_cast<const char*>(tensor.const_data_ptr()),
           static_cast<std::size_t>(tensor.nbytes())});
    };
    for (const auto& item : fsdp_.named_parameters().items) {
      add(item.slice);
    }
    for (const auto& one : adamw_.tensors({})) {
      add(one.tensor);
    }
    return hash.value();
  }

  const DiskRankOptions options_;
  const World world_;
  const c10::Device device_;
  DiskModel model_;
  FullyShardedDataParallel fsdp_;
  AdamW adamw_;
  CheckpointState state_;
};

// Runs a rank. Returns whether it ended in order; otherwise it has reported why.
bool runs(
    const DiskRankOptions& options,
    int rank,
    const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    tell(options, rank, str("failed ", error.what()));
    return false;
  }
}

// Also reports what was out of order on the devices.
bool runs_on_devices(const DiskRankOptions& options) {
  using namespace sherd::test;
  (void)checking_device();
  ThreadNetwork network(options.ranks);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> fine = true;
  const auto run_rank = [&](int rank) {
    fine = runs(
               options, rank,
               [&] {
                 run_device_rank(
                     World::from_store(store, rank, options.ranks), network, {},
                     [&](const DeviceRank& self) {
                       // The default stream would provide order that a program must not rely on.
                       const device::CurrentStream on(
                           device::Stream::with_high_priority(self.device));
                       DiskRank(options, self.world, self.device).run();
                     });
               }) &&
        fine;
  };
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < options.ranks; ++rank) {
      ranks.emplace_back(run_rank, rank);
    }
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    for (const auto& fault : take_faults(checking_device(rank))) {
      tell(options, rank, "failed " + fault);
      fine = false;
    }
  }
  return fine;
}

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

}  // namespace

int run_disk_rank(const DiskRankOptions& options) {
  set("RANK", std::to_string(options.rank));
  set("WORLD_SIZE", std::to_string(options.ranks));
  set("LOCAL_RANK", std::to_string(options.rank));
  set("LOCAL_WORLD_SIZE", std::to_string(options.ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(options.port));
  set("SHERD_COORDINATOR", options.coordinator);
  set("SHERD_REPLICA", std::to_string(options.replica));
  set("SHERD_REPLICAS", std::to_string(options.replicas));
  fault = options.fault;
  fault_at = options.fault_at;
  kills_left = options.kills_left;
  fault_release = options.release;
  torch::set_num_threads(1);
  const bool fine = options.on_devices
      ? runs_on_devices(options)
      : runs(options, options.rank, [&] {
          DiskRank(options, World::from_environment()).run();
        });
  return fine ? 0 : 1;
}

}  // namespace sherd::ft::test
