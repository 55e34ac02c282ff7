// SPDX-License-Identifier: Apache-2.0
//
// CodedShards code shards before a gather sends them and decode them where they arrive, for example
// to quantise them. This rank's shards are coded once per generation and kept. On a device all work
// is in the current stream. Thread rule: that of the thread that gathers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "exchange/private_buffers.h"
#include "world/transport.h"

namespace sherd::exchange {

struct CodedShard {
  UnitId unit = 0;
  int flat = 0;
  int owner = 0;  // The rank's position on the shard axis.
};

// The same on all ranks. An exception thrown by it is a failure of the exchange.
struct ShardCoder {
  std::string name;
  // How many bytes a coded shard of `numel` elements takes that have this dtype in the whole unit.
  std::function<std::int64_t(std::int64_t numel, c10::ScalarType dtype)> bytes;
  // Codes a shard, whose elements have that dtype in the whole unit, as bytes: kByte, 1-D.
  std::function<void(
      const CodedShard&,
      const at::Tensor& shard,
      c10::ScalarType dtype,
      const at::Tensor& coded)>
      encode;
  // Decodes these bytes into the shard's part of the whole unit.
  std::function<void(
      const CodedShard&, const at::Tensor& coded, const at::Tensor& part)>
      decode;
};

class CodedShards {
 public:
  // Both must outlive it; `rank` is this rank's position. The size of coded shards is rounded up to
  // a multiple of this many bytes.
  CodedShards(
      const ModelSpec& model,
      PrivateBuffers& memories,
      std::shared_ptr<const ShardCoder> coder,
      int rank,
      std::int64_t multiple = 1);

  // This rank's coded shard, as others receive it.
  at::Tensor own(UnitId unit, int flat, std::uint64_t generation);
  // Memory for the coded shard of another rank.
  at::Tensor room(const CodedShard& which) const;
  // The layout of all ranks' coded shards, one after the other, in bytes.
  plan::FlatLayout layout_of(UnitId unit, int flat) const;
  // Fills a rank's part of the whole unit. Throws what the coder throws, as an Error.
  void decode(
      const CodedShard& which,
      const at::Tensor& coded,
      const at::Tensor& part) const;
  // A transfer that is done when `coded`, which `incoming` receives (null: it is already there), is
  // decoded into `part`.
  std::unique_ptr<world::Transfer> decoded(
      const CodedShard& which,
      const at::Tensor& coded,
      const at::Tensor& part,
      std::unique_ptr<world::Transfer> incoming) const;

 private:
  struct Own {
    at::Tensor coded;
    std::optional<std::uint64_t> generation;
  };
  const FlatSpec& spec_of(const CodedShard& which) const {
    return model_.unit(which.unit).flats[static_cast<std::size_t>(which.flat)];
  }
  std::int64_t bytes_of(const CodedShard& which) const;
  std::int64_t room_bytes(const CodedShard& which) const;
  std::string failed(const CodedShard& which) const;

  const ModelSpec& model_;
  PrivateBuffers& memories_;
  const std::shared_ptr<const ShardCoder> coder_;
  const int rank_;
  const std::int64_t multiple_;
  std::vector<std::vector<Own>> own_;  // By unit, by flat.
};

}  // namespace sherd::exchange
