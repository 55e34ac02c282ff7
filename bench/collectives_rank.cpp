// SPDX-License-Identifier: Apache-2.0
//
// One rank of `sherd bench collectives`: the same collectives over shm and Gloo, and a plain memcpy
// of as many bytes on all ranks at once, in short blocks, in turn and in a different order each
// round.
#include <dlfcn.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>
#include <sherd/c10d_shm.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/torch.h>
#include "base/rank_environment.h"
#include "bench/collectives.h"
#include "bench/statistics.h"

namespace sherd::bench {
namespace {

using Clock = std::chrono::steady_clock;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// DeepSpeed's all-reduce, from the library that bench/build_deepspeed.py builds.
using OpenDeepSpeed = void (*)(int size, int rank, char* address, char* port);
using DeepSpeed = void (*)(void* tensor);

struct Backends {
  int rank = 0;
  int ranks = 1;
  BackendPtr shm;
  BackendPtr gloo;
  DeepSpeed deepspeed = nullptr;
};

DeepSpeed open_deepspeed(const std::string& path, int rank, int ranks) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error("[bench] --deepspeed: " + std::string(::dlerror()));
  }
  const auto open =
      reinterpret_cast<OpenDeepSpeed>(::dlsym(library, "deepspeed_open"));
  const auto all_reduce =
      reinterpret_cast<DeepSpeed>(::dlsym(library, "deepspeed_all_reduce"));
  if (open == nullptr || all_reduce == nullptr) {
    throw Error(
        "[bench] --deepspeed: expected what bench/build_deepspeed.py makes, "
        "found " +
        path);
  }
  open(ranks, rank, std::getenv("MASTER_ADDR"), std::getenv("MASTER_PORT"));
  return all_reduce;
}

Backends connect(const CollectivesOptions& flags) {
  const auto environment = read_rank_environment(process_environment());
  if (environment.source == "none") {
    throw Error(
        "[bench] expected the variables of a rank (RANK, WORLD_SIZE, ...), "
        "found none: this program is one rank of `sherd bench collectives`, "
        "which starts it by `sherd run`");
  }
  Backends job;
  job.rank = environment.rank;
  job.ranks = environment.world_size;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port);
  options.isServer = job.rank == 0;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto named = [&](const char* name) {
    return c10::make_intrusive<c10d::PrefixStore>(name, store);
  };
  job.shm = make_shm_backend(named("shm"), job.rank, job.ranks);
  auto gloo = c10d::ProcessGroupGloo::Options::create();
  gloo->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  job.gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      named("gloo"), job.rank, job.ranks, gloo);
  if (!flags.deepspeed.empty()) {
    job.shm->barrier()->wait();
    job.deepspeed = open_deepspeed(flags.deepspeed, job.rank, job.ranks);
  }
  return job;
}

template <typename Options>
Options waited_for() {
  Options options;
  options.asyncOp = false;
  return options;
}

// A collective of `bytes` on its own tensors.
class CollectiveCase {
 public:
  CollectiveCase(
      const Backends& job,
      std::string operation,
      c10::ScalarType dtype,
      std::int64_t bytes)
      : job_(job), operation_(std::move(operation)) {
    const std::int64_t elements = bytes /
        static_cast<std::int64_t>(c10::elementSize(dtype)) / job.ranks *
        job.ranks;
    whole_ = torch::ones({elements}, dtype);
    part_ = torch::ones({elements / job.ranks}, dtype);
    memory_ = torch::ones({elements}, dtype);
  }

  // Called as torch.distributed does, which waits unless async_op is set.
  void run(const BackendPtr& backend) {
    if (operation_ == "all_reduce") {
      std::vector<torch::Tensor> tensors = {whole_};
      backend->allreduce(tensors, waited_for<c10d::AllreduceOptions>())->wait();
    } else if (operation_ == "all_gather") {
      backend
          ->_allgather_base(whole_, part_, waited_for<c10d::AllgatherOptions>())
          ->wait();
    } else {
      backend
          ->_reduce_scatter_base(
              part_, whole_, waited_for<c10d::ReduceScatterOptions>())
          ->wait();
    }
  }
  void run_deepspeed() { job_.deepspeed(&whole_); }
  void copy() {
    std::memcpy(memory_.data_ptr(), whole_.data_ptr(), whole_.nbytes());
  }

  // Throws unless both backends compute the right result.
  void check(const BackendPtr& backend, const char* name) {
    const bool gathers = operation_ == "all_gather";
    whole_.fill_(gathers ? -1 : checked_value(job_.rank));
    part_.fill_(gathers ? job_.rank + 1 : -1);
    run(backend);
    bool right = true;
    if (gathers) {
      const auto pieces = whole_.chunk(job_.ranks);
      for (int r = 0; r < job_.ranks; ++r) {
        right = right &&
            pieces[static_cast<std::size_t>(r)].eq(r + 1).all().item<bool>();
      }
    } else {
      int sum = 0;
      for (int r = 0; r < job_.ranks; ++r) {
        sum += checked_value(r);
      }
      const auto& result = operation_ == "all_reduce" ? whole_ : part_;
      right = result.eq(sum).all().item<bool>();
    }
    if (!right) {
      throw Error(
          std::string("[bench] ") + name + ": " + operation_ +
          " gave a wrong result");
    }
    whole_.fill_(1);
    part_.fill_(1);
  }

 private:
  const Backends& job_;
  const std::string operation_;
  torch::Tensor whole_;
  torch::Tensor part_;
  torch::Tensor memory_;
};

struct Runner {
  const char* name;
  std::function<void()> run;
};

double block_ms(
    const Backends& job, const std::function<void()>& run, int count) {
  run();  // Another contender has filled the caches.
  job.shm->barrier()->wait();
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    run();
  }
  job.shm->barrier()->wait();
  const std::chrono::duration<double, std::milli> spent = Clock::now() - begin;
  return spent.count() / count;
}

// How many calls fit into a block, as rank 0 finds out.
int count_for(
    const Backends& job, const std::function<void()>& run, double wanted) {
  const double once = block_ms(job, run, 2);
  auto count = torch::full(
      {1}, std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted / once)));
  std::vector<torch::Tensor> tensors = {count};
  job.shm->broadcast(tensors)->wait();
  return static_cast<int>(count.item<std::int64_t>());
}

void measure(
    const Backends& job,
    const CollectivesOptions& flags,
    const CollectiveTimes& what,
    c10::ScalarType dtype) {
  CollectiveCase tried(job, what.operation, dtype, what.bytes);
  tried.check(job.shm, "shm");
  tried.check(job.gloo, "gloo");
  std::vector<Runner> runners = {
      {"shm", [&] { tried.run(job.shm); }},
      {"gloo", [&] { tried.run(job.gloo); }},
      {"memcpy", [&] { tried.copy(); }}};
  if (job.deepspeed != nullptr && what.operation == "all_reduce") {
    runners.push_back({"deepspeed", [&] { tried.run_deepspeed(); }});
  }
  std::vector<CollectiveTimes> times(runners.size(), what);
  std::vector<int> counts;
  for (std::size_t i = 0; i < runners.size(); ++i) {
    times[i].contender = runners[i].name;
    counts.push_back(count_for(job, runners[i].run, flags.block_ms));
  }
  for (int round = 0; round < flags.rounds; ++round) {
    for (const auto i :
         order_of_round(runners.size(), static_cast<std::uint64_t>(round))) {
      times[i].round_ms.push_back(block_ms(job, runners[i].run, counts[i]));
    }
  }
  for (std::size_t i = 0; i < runners.size() && job.rank == 0; ++i) {
    std::puts(line_of(times[i]).c_str());
    std::fflush(stdout);
  }
}

void measure_all(const Backends& job, const CollectivesOptions& flags) {
  torch::set_num_threads(1);
  for (const char* operation : {"all_reduce", "all_gather", "reduce_scatter"}) {
    for (const auto& [dtype, name] :
         {std::pair{torch::kFloat32, "fp32"}, {torch::kBFloat16, "bf16"}}) {
      // 4, 16, 64 and 256 KiB, 1, 16 and 64 MiB.
      for (std::int64_t bytes = std::int64_t{4} << 10;
           bytes <= std::int64_t{64} << 20; bytes *= 4) {
        if (bytes != std::int64_t{4} << 20 && bytes >= flags.bytes_min &&
            bytes <= flags.bytes_max) {
          measure(
              job, flags,
              {.operation = operation,
               .dtype = name,
               .bytes = bytes,
               .contender = {}},
              dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  using namespace sherd::bench;
  CLI::App app("One rank of sherd bench collectives");
  CollectivesOptions flags;
  app.add_option("--rounds", flags.rounds);
  app.add_option("--block-ms", flags.block_ms);
  app.add_option("--bytes-min", flags.bytes_min);
  app.add_option("--bytes-max", flags.bytes_max);
  app.add_option("--deepspeed", flags.deepspeed);
  CLI11_PARSE(app, argc, argv);
  return sherd::run_main(argc, argv, [&] {
    const Backends job = connect(flags);
    measure_all(job, flags);
    job.gloo->barrier()->wait();
    return 0;
  });
}
