// SPDX-License-Identifier: Apache-2.0
//
// CodedShards are what gathers carry where shards are coded before they are sent and decoded where they
// arrive, as quantised ones are. This rank's are coded once a generation and kept. On a device all of it
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

// The same on all ranks. What it throws is a failure of the exchange.
struct ShardCoder {
  std::string name;
  // How many a shard of so many elements takes, which has this dtype in the whole unit.
  std::function<std::int64_t(std::int64_t numel, c10::ScalarType dtype)> bytes;
  // From the shard to bytes, kByte, 1-D, of a whole unit of that dtype.
  std::function<void(
      const CodedShard&,
      const at::Tensor& shard,
      c10::ScalarType dtype,
      const at::Tensor& coded)>
      encode;
  // From those to the shard's part of the whole unit.
  std::function<void(
      const CodedShard&, const at::Tensor& coded, const at::Tensor& part)>
      decode;
};

class CodedShards {
 public:
  // Both must outlive it; `rank` is this one's position. Coded shards take a multiple of so many bytes.
  CodedShards(
      const ModelSpec& model,
      PrivateBuffers& memories,
      std::shared_ptr<const ShardCoder> coder,
      int rank,
      std::int64_t multiple = 1);

  // This rank's, as others get it.
  at::Tensor own(UnitId unit, int flat, std::uint64_t generation);
  // Room for another's.
  at::Tensor room(const CodedShard& which) const;
  // Where all ranks' lie, one after the other, in bytes.
  plan::FlatLayout layout_of(UnitId unit, int flat) const;
  // Fills a rank's part of the whole unit. Throws what the coder does, as an Error.
  void decode(
      const CodedShard& which,
      const at::Tensor& coded,
      const at::Tensor& part) const;
  // A transfer that is done when `coded`, which `incoming` brings (null: it is there), is decoded
  // into `part`.
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
    return model_.units[static_cast<std::size_t>(which.unit)]
        .flats[static_cast<std::size_t>(which.flat)];
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
