// SPDX-License-Identifier: Apache-2.0
//
// sherd-bench-checkpoint: how fast ranks save and load together, compared with plain writes with
// fsync and plain reads of as many bytes on the same disk, in turn.
//
//   sherd run -n 2 --no-prefix -- sherd-bench-checkpoint --folder /var/tmp/x
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/world/world.h>
#include <torch/torch.h>
#include "bench/statistics.h"

namespace sherd::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct RankFlags {
  std::string folder = ".";
  double gigabytes = 1.0;  // For all ranks together.
  int rounds = 7;
};

void check(bool fine, const std::string& action) {
  if (!fine) {
    throw Error("[bench] " + action + " failed", ErrorCode::kUnavailable);
  }
}

// A new folder in that one, which may hold what the user has there already.
std::string make_scratch_folder(const std::string& folder) {
  fs::create_directories(folder);
  std::string path = folder + "/sherd-bench-XXXXXX";
  check(::mkdtemp(path.data()) != nullptr, "making " + path);
  return path;
}

// Removes that folder, if the path is not empty, at the end, also after a failure.
struct FolderRemoval {
  const std::string path;
  explicit FolderRemoval(std::string owned) : path(std::move(owned)) {}
  FolderRemoval(const FolderRemoval&) = delete;
  FolderRemoval& operator=(const FolderRemoval&) = delete;
  ~FolderRemoval() {
    if (!path.empty()) {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  }
};

// Without a buffer: whole tensors go to the kernel.
std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
    const std::string& path, const char* mode) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  check(file != nullptr, "opening " + path);
  std::setvbuf(file, nullptr, _IONBF, 0);
  return {file, &std::fclose};
}

// Drops the cached pages of the files, so that reads come from the disk. Only clean pages are
// dropped, hence this comes after fsync.
void forget(const std::string& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const int fd = ::open(entry.path().c_str(), O_RDONLY);
    if (fd >= 0) {
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
  }
}

class InterleavedRun {
 public:
  // `folder` is the ranks' own, and empty.
  InterleavedRun(
      const World& world, const std::string& folder, double gigabytes)
      : world_(world),
        folder_(folder),
        saver_(world, folder, {.keep_last = 1}) {
    // Shards of real models are multiples, too.
    const auto wanted = static_cast<std::int64_t>(
        gigabytes * 1e9 / 4 / world.size() / kTensors);
    const auto elements = std::max(wanted / 1024, std::int64_t{1}) * 1024;
    for (int i = 0; i < kTensors; ++i) {
      tensors_.push_back(torch::rand({elements}));
      state_.add(
          "model",
          {.name = "tensor." + std::to_string(i),
           .shape = {world.size(), elements},
           .begin = world.rank() * elements,
           .elements = tensors_.back(),
           .ranks = world.size()});
    }
  }

  // What all ranks together write: whole tensors, and so not quite what was asked for.
  double gigabytes() const {
    double bytes = 0;
    for (const auto& tensor : tensors_) {
      bytes += static_cast<double>(tensor.nbytes());
    }
    return bytes * world_.size() / 1e9;
  }

  // The time of the slowest rank, in seconds.
  double time(const std::function<void()>& run) {
    world_.barrier();
    const auto begin = Clock::now();
    run();
    const std::chrono::duration<double> mine = Clock::now() - begin;
    double slowest = 0;
    for (const auto& one : world_.all_gather({mine.count()})) {
      slowest = std::max(slowest, one[0]);
    }
    return slowest;
  }

  double save() {
    return time([&] { saver_.save(++step_, state_); });
  }
  // The time that training waits.
  double copy() {
    return time([&] {
      room_.resize(tensors_.size());
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (!room_[i].defined()) {
          room_[i] = torch::empty_like(tensors_[i]);
        }
        room_[i].copy_(tensors_[i]);
      }
    });
  }
  double plain_write() {
    const auto path = plain_path();
    return time([&] {
      const auto file = opened(path, "w");
      for (const auto& tensor : tensors_) {
        check(
            std::fwrite(
                tensor.const_data_ptr(), tensor.nbytes(), 1, file.get()) == 1,
            "writing " + path);
      }
      check(::fsync(::fileno(file.get())) == 0, "syncing " + path);
    });
  }
  double load() {
    const auto newest = *saver_.newest();
    forget(newest);
    return time([&] { load_checkpoint(world_, newest, state_); });
  }
  double plain_read() {
    const auto path = plain_path();
    forget(folder_);
    return time([&] {
      const auto file = opened(path, "r");
      for (const auto& tensor : tensors_) {
        check(
            std::fread(
                tensor.mutable_data_ptr(), tensor.nbytes(), 1, file.get()) == 1,
            "reading " + path);
      }
    });
  }

 private:
  static constexpr int kTensors = 48;

  std::string plain_path() const {
    return folder_ + "/plain-" + std::to_string(world_.rank());
  }

  const World& world_;
  const std::string folder_;
  CheckpointSaver saver_;
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> room_;
  CheckpointState state_;
  std::int64_t step_ = 0;
};

void print(
    const char* what,
    const std::vector<double>& ours,
    const std::vector<double>& plain,
    double gigabytes) {
  const auto speed = estimate_median(ratios(plain, ours));
  std::printf(
      "%s: %.6f GB, %.2f s, %.2f GB/s; plain %.2f s; speed / plain %.3f "
      "(%.3f-%.3f)\n",
      what, gigabytes, median(ours), gigabytes / median(ours), median(plain),
      speed.median, speed.low, speed.high);
}

int checkpoint_command(int argc, char** argv) {
  CLI::App app("Speed of saving and loading", "sherd-bench-checkpoint");
  RankFlags flags;
  app.add_option(
      "--folder", flags.folder,
      "On the disk in question; the ranks' files lie in a new folder in it");
  app.add_option("--gigabytes", flags.gigabytes)->check(CLI::PositiveNumber);
  app.add_option("--rounds", flags.rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  auto world = World::from_environment();
  const FolderRemoval made(
      world.rank() == 0 ? make_scratch_folder(flags.folder) : "");
  const auto folder = world.all_gather_texts(made.path).front();
  {
    InterleavedRun measurement(world, folder, flags.gigabytes);
    std::vector<double> save, write, load, read, copy;
    measurement.save();
    measurement.copy();
    for (int round = 0; round < flags.rounds; ++round) {
      for (const auto i :
           order_of_round(2, static_cast<std::uint64_t>(round))) {
        i == 0 ? save.push_back(measurement.save())
               : write.push_back(measurement.plain_write());
      }
      for (const auto i :
           order_of_round(2, static_cast<std::uint64_t>(round))) {
        i == 0 ? load.push_back(measurement.load())
               : read.push_back(measurement.plain_read());
      }
      copy.push_back(measurement.copy());
    }
    if (world.rank() == 0) {
      print("save", save, write, measurement.gigabytes());
      print("load", load, read, measurement.gigabytes());
      std::printf("one copy of a rank's tensors: %.3f s\n", median(copy));
    }
  }
  world.barrier();
  world.close();
  return 0;
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  using namespace sherd::bench;
  return sherd::run_main(
      argc, argv, [&] { return checkpoint_command(argc, argv); });
}
