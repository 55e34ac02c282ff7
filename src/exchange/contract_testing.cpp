// SPDX-License-Identifier: Apache-2.0
#include "exchange/contract_testing.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#include <ctime>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"

namespace sherd::exchange::contract {
namespace {

constexpr std::size_t kMarkBytes = 4096;

const std::uint32_t* word_of(const std::atomic<std::uint32_t>& flag) {
  static_assert(sizeof(flag) == sizeof(std::uint32_t));
  return reinterpret_cast<const std::uint32_t*>(&flag);
}

const FlatSpec& flat_of(const ModelSpec& model, UnitId unit, int flat) {
  return model.units.at(static_cast<std::size_t>(unit))
      .flats.at(static_cast<std::size_t>(flat));
}

template <typename Value>
at::Tensor fill(const FlatSpec& flat, const Value& value) {
  auto values = at::empty({flat.layout.numel}, at::kDouble);
  auto* const elements = values.data_ptr<double>();
  for (std::int64_t i = 0; i < flat.layout.numel; ++i) {
    elements[i] = value(static_cast<std::uint64_t>(i));
  }
  return values.to(flat.dtype);
}

}  // namespace

Marks::Marks() {
  void* page = ::mmap(
      nullptr, kMarkBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
      -1, 0);
  EXPECT_NE(page, MAP_FAILED);
  flags_ = static_cast<Flag*>(page);  // Zero is a valid atomic.
}

Marks::~Marks() { ::munmap(flags_, kMarkBytes); }

void Marks::set(int rank) {
  flag(rank).store(1, std::memory_order_release);
  ::syscall(
      SYS_futex, word_of(flag(rank)), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Marks::wait_for(int rank) const {
  const SteadyClock clock;
  const Instant limit = clock.now() + std::chrono::seconds(30);
  while (!is_set(rank)) {
    SHERD_CHECK_AS(
        kDeadlineExceeded, clock.now() < limit, "[test] expected the mark of ",
        "rank ", rank);
    // Not a private futex, as std::atomic::wait's may be: ranks are processes.
    const timespec rest = {.tv_sec = 0, .tv_nsec = 100'000'000};
    ::syscall(SYS_futex, word_of(flag(rank)), FUTEX_WAIT, 0, &rest, nullptr, 0);
  }
}

void Marks::meet(int rank, int ranks) {
  set(rank);
  for (int other = 0; other < ranks; ++other) {
    wait_for(other);
  }
}

ModelSpec make_model(
    int owners, const std::vector<std::vector<FlatSketch>>& units) {
  ModelSpec model;
  for (std::size_t u = 0; u < units.size(); ++u) {
    UnitSpec unit;
    unit.name = str("u", u);
    for (const auto& sketch : units[u]) {
      FlatSpec flat;
      std::vector<plan::FlatParameter> parameters;
      for (const auto numel : sketch.numels) {
        const auto name =
            str(unit.name, ".", unit.flats.size(), ".", flat.names.size());
        flat.names.push_back(name);
        flat.shapes.push_back(str("[", numel, "]"));
        parameters.push_back({name, numel, sketch.granularity});
      }
      flat.dtype = sketch.dtype;
      flat.param_dtype = sketch.param_dtype;
      flat.reduce_dtype = sketch.reduce_dtype;
      flat.trainable = sketch.trainable;
      flat.layout = plan::plan_flat_layout(
          parameters,
          {.ranks = owners,
           .element_bytes =
               static_cast<std::int64_t>(c10::elementSize(sketch.dtype))});
      unit.flats.push_back(std::move(flat));
    }
    model.units.push_back(std::move(unit));
  }
  return model;
}

ModelSpec mixed_model(int owners) {
  return make_model(
      owners,
      {{{.numels = {35, 7, 0, 501}},
        {.numels = {3}, .trainable = false},
        {.numels = {1}, .dtype = at::kDouble}},
       // An odd number of 2-byte elements before larger ones.
       {{.numels = {129}, .dtype = at::kBFloat16},
        {.numels = {1001, 2}, .dtype = at::kDouble},
        {.numels = {77}, .dtype = at::kHalf},
        {.numels = {4, 9}, .dtype = at::kLong, .trainable = false},
        {.numels = {210, 33}, .param_dtype = at::kBFloat16},
        {.numels = {65},
         .param_dtype = at::kBFloat16,
         .reduce_dtype = at::kFloat},
        {.numels = {50}, .trainable = false, .param_dtype = at::kHalf}},
       {{.numels = {1}}},
       {{.numels = {0}}},
       {{.numels = {300}, .trainable = false}},
       // One rank owns all of it.
       {{.numels = {640}, .granularity = 640}}});
}

ModelSpec plain_model(int owners) {
  return make_model(
      owners,
      {{{.numels = {100, 31}}}, {{.numels = {57}}}, {{.numels = {200}}}});
}

bool trainable(const UnitSpec& unit) { return trainable_parameters(unit) > 0; }

at::Tensor pattern(const ModelSpec& model, UnitId unit, int flat, int salt) {
  const auto base = static_cast<std::uint64_t>(unit * 3 + flat * 5 + salt * 11);
  return fill(flat_of(model, unit, flat), [&](std::uint64_t i) {
    return static_cast<double>((base + i * 7) % 31);
  });
}

at::Tensor noise(const ModelSpec& model, UnitId unit, int flat, int salt) {
  const auto base = mix64(
      static_cast<std::uint64_t>(unit * 1'000'000 + flat * 10'000 + salt));
  return fill(flat_of(model, unit, flat), [&](std::uint64_t i) {
    const auto draw = mix64(base + i);
    const auto small = static_cast<double>(draw % 2001) / 997.0 - 1.0;
    return small * static_cast<double>(1U << ((draw >> 32U) % 9));
  });
}

plan::ElementRange owned_by(
    const ModelSpec& model, UnitId unit, int flat, int rank) {
  const int owners = flat_of(model, unit, flat).layout.ranks();
  return owned(model, unit, flat, rank % owners);
}

void write_shards(
    Exchange& exchange, const ModelSpec& model, int rank, int salt) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      const auto unit = static_cast<UnitId>(u);
      const auto flat = static_cast<int>(f);
      const auto range = owned_by(model, unit, flat, rank);
      auto shard = exchange.shard_memory(unit, flat).shard;
      shard.copy_(pattern(model, unit, flat, salt)
                      .narrow(0, range.begin, range.numel()));
    }
  }
}

void fill_gradients(
    Exchange& exchange,
    const ModelSpec& model,
    UnitId unit,
    int salt,
    Values values) {
  auto slot = exchange.gradient_slot(unit);
  ASSERT_EQ(slot.size(), model.unit(unit).flats.size());
  for (std::size_t f = 0; f < slot.size(); ++f) {
    const auto flat = static_cast<int>(f);
    ASSERT_EQ(slot[f].defined(), flat_of(model, unit, flat).trainable);
    if (slot[f].defined()) {
      slot[f].copy_(values(model, unit, flat, salt));
    }
  }
}

void open(Seat& seat, const ModelSpec& model) {
  seat.exchange->open(model).throw_if_failed();
}

void expect_whole(
    Exchange& exchange,
    const ModelSpec& model,
    UnitId unit,
    int salt,
    const UnshardOptions& options) {
  exchange.start_unshard(unit, options).throw_if_failed();
  expect_values(exchange, model, unit, salt);
}

at::Tensor read_whole(
    Exchange& exchange,
    UnitId unit,
    int flat,
    const void* address,
    const at::Tensor& like) {
  const auto device = exchange.shard_memory(unit, flat).shard.device();
  return at::for_blob(const_cast<void*>(address), like.sizes())
      .options(like.options().device(device))
      .target_device(device)
      .make_tensor()
      .cpu();
}

void expect_values(
    Exchange& exchange, const ModelSpec& model, UnitId unit, int salt) {
  const auto addresses = exchange.wait_for_unshard(unit).value();
  ASSERT_EQ(addresses.size(), model.unit(unit).flats.size());
  for (std::size_t f = 0; f < addresses.size(); ++f) {
    const auto flat = static_cast<int>(f);
    const auto& spec = flat_of(model, unit, flat);
    const auto dtype = spec.unsharded_dtype();
    const auto expected = pattern(model, unit, flat, salt).to(dtype);
    EXPECT_TRUE(read_whole(exchange, unit, flat, addresses[f], expected)
                    .equal(expected))
        << "unit " << unit << ", flat " << flat << ", salt " << salt;
  }
  exchange.reshard(unit);
}

ReduceOptions reduce_options(const UnitSpec& unit, double scale) {
  ReduceOptions options;
  options.scale = scale;
  options.accumulate.assign(unit.flats.size(), false);
  options.used.assign(trainable_parameters(unit), true);
  return options;
}

void reduce_all(
    Exchange& exchange, const ModelSpec& model, int rank, int salt) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (trainable(model.units[u])) {
      const auto unit = static_cast<UnitId>(u);
      fill_gradients(exchange, model, unit, rank + salt);
      exchange.start_reduce(unit, reduce_options(model.units[u]))
          .throw_if_failed();
    }
  }
}

BackwardEnd backward_end(const ModelSpec& model) {
  BackwardEnd end;
  end.late.assign(model.units.size(), false);
  return end;
}

void run_backward(
    Exchange& exchange, const ModelSpec& model, int rank, int salt) {
  reduce_all(exchange, model, rank, salt);
  exchange.end_backward(backward_end(model)).status().throw_if_failed();
}

void expect_gradient(
    Exchange& exchange,
    const ModelSpec& model,
    UnitId unit,
    int flat,
    int rank,
    const at::Tensor& expected) {
  const auto found = exchange.shard_memory(unit, flat).gradient;
  if (!flat_of(model, unit, flat).trainable) {
    EXPECT_FALSE(found.defined());
    return;
  }
  const auto range = owned_by(model, unit, flat, rank);
  EXPECT_TRUE(
      at::equal(found.cpu(), expected.narrow(0, range.begin, range.numel())))
      << "gradient of unit " << unit << ", flat " << flat << ", rank " << rank;
}

void expect_sums(
    Exchange& exchange, const ModelSpec& model, int rank, int ranks, int salt) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      const auto unit = static_cast<UnitId>(u);
      const auto flat = static_cast<int>(f);
      auto sum = at::zeros_like(pattern(model, unit, flat, 0));
      for (int r = 0; r < ranks; ++r) {
        sum.add_(pattern(model, unit, flat, r + salt));
      }
      expect_gradient(exchange, model, unit, flat, rank, sum);
    }
  }
}

}  // namespace sherd::exchange::contract
