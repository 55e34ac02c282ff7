// SPDX-License-Identifier: Apache-2.0
//
// The contract suite of the Exchange interface: every implementation passes the same tests. They
// are in contract_*_test.cpp and are compiled once. An implementation joins by saying how to run a
// body on several ranks and in which variants:
//
//   std::vector<ExchangeUnderTest> mine() {...}
//   SHERD_EXCHANGE_CONTRACT(Mine, testing::ValuesIn(mine()));
//
// See fake_contract_test.cpp and collective_contract_test.cpp. Bodies run in threads or in
// processes, so they share nothing but Marks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include "exchange/exchange.h"

namespace sherd::exchange::contract {

// One rank of a test.
struct Seat {
  int rank = 0;
  int ranks = 1;
  // Not opened yet. The body may destroy it.
  std::unique_ptr<Exchange> exchange;
  // Ends this rank without notice, for good. Needs RunOptions::dies.
  std::function<void()> die;
  // Returns when every rank has called it. Does not use the exchange.
  std::function<void()> meet;
  // Returned by run().
  std::string result;
};

using Body = std::function<void(Seat&)>;

struct RunOptions {
  // The deadline of every wait.
  std::chrono::milliseconds deadline = std::chrono::seconds(20);
  int dies = -1;  // The rank whose body calls die(); -1: none.
  // Ranks fail in the test, or end at different times: they do not meet before their exchanges are
  // destroyed.
  bool disorderly = false;
};

struct ExchangeUnderTest {
  std::string name;
  int ranks = 2;
  // Runs the body on all ranks and returns their results. Failures and exceptions of a body fail
  // the test, and so does a hang.
  std::function<std::vector<std::string>(int, const RunOptions&, const Body&)>
      run_on;
  bool one_sided = false;  // Exchange::one_sided().
  bool replicates = true;  // Supports ModelPlacement::kReplicate.
  // Sums are made in rank order, at least in fp32.
  bool sums_in_rank_order = true;
  // Reductions end before end_backward(), even if nothing is gathered.
  bool reduces_meanwhile = true;
  // Respects ReduceOptions::under_way_max.
  bool limits_reductions = true;
  // Makes any sum that it can, not only its oldest one.
  bool sums_in_any_order = false;
  // Sums are made host by host: the number of ranks on each, in rank order. Empty: one host.
  std::vector<int> hosts{};
  // Ranks form this many groups, one after the other, each of which has all shards; a rank
  // exchanges with its group and with ranks that have equal shards.
  int replicas = 1;
  // Every rank has a shard of its own, and groups consist of the ranks with the same rank %
  // replicas.
  bool both_axes = false;

  int replica_of(int rank) const {
    return both_axes ? rank % replicas : rank * replicas / ranks;
  }

  std::vector<std::string> run(
      const RunOptions& options, const Body& body) const {
    return run_on(ranks, options, body);
  }
  std::vector<std::string> run(const Body& body) const {
    return run_on(ranks, {}, body);
  }
};

inline void PrintTo(const ExchangeUnderTest& contender, std::ostream* out) {
  *out << contender.name << contender.ranks << "Ranks";
}

class ExchangeTest : public testing::TestWithParam<ExchangeUnderTest> {
 protected:
  const ExchangeUnderTest& with() const { return GetParam(); }
  int ranks() const { return GetParam().ranks; }
  int replicas() const { return GetParam().replicas; }
  // How many ranks own different shards; rank r has shard r % owners().
  int owners() const {
    return with().both_axes ? ranks() : ranks() / replicas();
  }
};
class ExchangeUnshard : public ExchangeTest {};
class ExchangeReduce : public ExchangeTest {};
class ExchangeBackward : public ExchangeTest {};
class ExchangeNumbers : public ExchangeTest {};
class ExchangeMismatch : public ExchangeTest {};
class ExchangeFailure : public ExchangeTest {};

inline std::string name_of(
    const testing::TestParamInfo<ExchangeUnderTest>& info) {
  return info.param.name + std::to_string(info.param.ranks) + "Ranks";
}

#define SHERD_EXCHANGE_CONTRACT(prefix, contenders)                        \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeUnshard, contenders, name_of);  \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeReduce, contenders, name_of);   \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeBackward, contenders, name_of); \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeNumbers, contenders, name_of);  \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeMismatch, contenders, name_of); \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeFailure, contenders, name_of)

// Flags that all ranks see, whether threads or processes. Make them before run().
class Marks {
 public:
  Marks();
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void set(int rank);
  bool is_set(int rank) const {
    return flag(rank).load(std::memory_order_acquire) != 0;
  }
  // Sleeps until the rank has set its flag; throws after half a minute.
  void wait_for(int rank) const;
  // Sets the flag of the rank and waits for those of all. Unlike in a barrier of the ranks, nobody
  // is disturbed by what another one does, or how it ends, as soon as it has returned.
  void meet(int rank, int ranks);

 private:
  using Flag = std::atomic<std::uint32_t>;

  Flag& flag(int rank) const { return flags_[rank]; }
  Flag* flags_;  // A page shared with children.
};

// ---- models ----

struct FlatSketch {
  std::vector<std::int64_t> numels;  // By parameter.
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool trainable = true;
  std::int64_t granularity = 1;
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
};

ModelSpec make_model(
    int owners, const std::vector<std::vector<FlatSketch>>& units);

// Units "u0", "u1", ...: uneven and empty shards, flats smaller than the world, all gradient
// dtypes, mixed precision, frozen flats, a unit that is entirely frozen and one without bytes.
ModelSpec mixed_model(int owners);
// Three units with one fp32 flat each.
ModelSpec plain_model(int owners);

bool trainable(const UnitSpec& unit);

// ---- values ----

// Small integers, exact in every dtype, that differ by unit, flat, element and `salt`; their sums
// over ranks are exact, too.
at::Tensor pattern(const ModelSpec& model, UnitId unit, int flat, int salt);
// Inexact numbers, whose sum depends on the order.
at::Tensor noise(const ModelSpec& model, UnitId unit, int flat, int salt);

// The elements of the flat that the rank owns.
plan::ElementRange owned_by(
    const ModelSpec& model, UnitId unit, int flat, int rank);
// Writes the pattern's elements that this rank owns into its shards.
void write_shards(
    Exchange& exchange, const ModelSpec& model, int rank, int salt);
// Fills the whole gradient slot of the unit.
using Values = at::Tensor (*)(const ModelSpec&, UnitId, int flat, int salt);
void fill_gradients(
    Exchange& exchange,
    const ModelSpec& model,
    UnitId unit,
    int salt,
    Values values = pattern);

// ---- steps ----

void open(Seat& seat, const ModelSpec& model);

// The values at a flat's address in a whole unit, for the host to read.
at::Tensor read_whole(
    Exchange& exchange,
    UnitId unit,
    int flat,
    const void* address,
    const at::Tensor& like);

// Waits for the unit, compares it with the pattern, and drops it.
void expect_values(
    Exchange& exchange, const ModelSpec& model, UnitId unit, int salt);
// The same, but starts the unit's gather first.
void expect_whole(
    Exchange& exchange,
    const ModelSpec& model,
    UnitId unit,
    int salt,
    const UnshardOptions& options = {});

ReduceOptions reduce_options(const UnitSpec& unit, double scale = 1.0);

// Fills and reduces every trainable unit with patterns of salt `rank + salt`.
void reduce_all(
    Exchange& exchange, const ModelSpec& model, int rank, int salt = 0);
BackwardEnd backward_end(const ModelSpec& model);
// reduce_all() and an end_backward() that must succeed.
void run_backward(
    Exchange& exchange, const ModelSpec& model, int rank, int salt = 0);

// Compares this rank's sharded gradients with the same elements of `expected`.
void expect_gradient(
    Exchange& exchange,
    const ModelSpec& model,
    UnitId unit,
    int flat,
    int rank,
    const at::Tensor& expected);
// Expects every sharded gradient to be the sum of patterns of salt 0 + salt, 1 + salt, ...
void expect_sums(
    Exchange& exchange,
    const ModelSpec& model,
    int rank,
    int ranks,
    int salt = 0);

}  // namespace sherd::exchange::contract
