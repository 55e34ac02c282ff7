// SPDX-License-Identifier: Apache-2.0
#include "ft/disk_rank.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/models/gpt.h>
#include <sherd/optim/adamw.h>
#include <torch/torch.h>

#include "base/check.h"
#include "base/hash.h"
#include "support/delay.h"

namespace {

using sherd::ft::test::DiskFault;

// Of the process.
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

// In place of the C library's, for all of this program.
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

class DiskRank {
 public:
  explicit DiskRank(const DiskRankOptions& options)
      : options_(options),
        world_(World::from_environment()),
        model_(models::GptConfig{
            .layers = 1,
            .width = options.width,
            .heads = 2,
            .sequence = 8,
            .vocabulary = 11,
            .seed = 5}),
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
        [this](std::int64_t) { adamw_.step(); }, options);
    while (const auto plan = session.begin_step()) {
      tell(str("holds ", hash(), ' ', session.state_name()));
      checkpoints.save_if_due(session, *plan);
      if (plan->step > options_.steps) {
        break;
      }
      if (!plan->samples.empty()) {
        compute(*plan);
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
    auto line = str(
        options_.replica, ' ', options_.rank, ' ', options_.life, ' ', what);
    std::replace(line.begin(), line.end(), '\n', ' ');
    line += '\n';  // Short enough to stay in one piece.
    ::syscall(SYS_write, options_.tell, line.data(), line.size());
  }

 private:
  void compute(const TrainingStep& plan) {
    sherd::test::be_late(std::chrono::milliseconds(5));
    torch::manual_seed(static_cast<std::uint64_t>(plan.samples.front().begin));
    const auto ids = torch::randint(0, 11, {2, 9}, torch::kLong);
    auto loss = model_->loss(
        ids.slice(1, 0, 8).contiguous(), ids.slice(1, 1, 9).contiguous());
    if (plan.step == options_.nan_at) {
      loss = loss * std::numeric_limits<float>::quiet_NaN();
    }
    loss.backward();
  }

  // Of this rank's part of all that makes a step what it is.
  std::uint64_t hash() {
    Hash64 hash;
    const auto add = [&hash](const at::Tensor& tensor) {
      hash.add(
          {static_cast<const char*>(tensor.const_data_ptr()),
           static_cast<std::size_t>(tensor.nbytes())});
    };
    for (const auto& item : fsdp_.named_parameters().items) {
      add(item.slice.detach());
    }
    for (const auto& one : adamw_.tensors(false)) {
      add(one.tensor.detach());
    }
    return hash.value();
  }

  const DiskRankOptions options_;
  const World world_;
  models::Gpt model_;
  FullyShardedDataParallel fsdp_;
  AdamW adamw_;
  CheckpointState state_;
};

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
  DiskRank rank(options);
  try {
    rank.run();
    return 0;
  } catch (const std::exception& error) {
    rank.tell(str("failed ", error.what()));
    return 1;
  }
}

}  // namespace sherd::ft::test
