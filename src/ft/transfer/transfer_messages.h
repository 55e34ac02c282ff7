// SPDX-License-Identifier: Apache-2.0
//
// What is said between a TransferServer and a fetch, as payloads of net's frames.
// One connection carries one request:
//
//   fetch                          server
//   TransferRequest                    ->
//                             <-   Waiting, while a snapshot is to be offered
//                             <-   TransferAnswer, or Refusal at any time
//   ChunkRequest, kWindow at most ->
//                             <-   Chunk, in the order of the asking
//
// The answer for a snapshot has the digests of all its chunks: who fetches from
// several donors compares them before it takes chunks from all.
// The other fields of a message that begins with another version are unknown; a
// Refusal is the same in all. Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "base/status.h"
#include "ft/protocol/messages.h"

namespace sherd::ft::transfer {

constexpr std::uint16_t kTransferVersion = 2;
constexpr std::size_t kChunkBytesMax = std::size_t{1} << 20U;
// Chunks that are asked for and have not come: hides the way there and back.
constexpr std::size_t kWindow = 4;
// In an answer: 128 GiB in the longest chunks.
constexpr std::size_t kDigestsMax = kChunkBytesMax / 8;
// Of a frame's payload: a chunk with its place and digest, or an answer.
constexpr std::size_t kPayloadBytesMax = kChunkBytesMax + 1024;
constexpr std::size_t kReasonBytesMax = 4096;

constexpr std::uint64_t chunks_of(
    std::uint64_t bytes, std::uint32_t chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes == 0 ? 0 : 1);
}

enum class TransferFrameType : std::uint16_t {
  kRequest = 1,
  kWaiting,
  kRefusal,
  kAnswer,
  kChunkRequest,
  kChunk,
};

enum class RequestKind : std::uint8_t {
  kAskSnapshot,    // Answered by the state that it is of.
  kFetchSnapshot,  // Of `state`.
  kFetchSum,       // With `state` as its base.
};

struct TransferRequest {
  RequestKind kind = RequestKind::kAskSnapshot;
  std::uint64_t run = 0;
  std::uint32_t shard_rank = 0;
  StateId state;
  std::uint32_t wait_ms_max = 0;  // Until it is there.
  bool operator==(const TransferRequest&) const = default;
};

enum class RefusalReason : std::uint8_t {
  kNotThere,  // What was asked for.
  kMismatch,  // Run, rank, version, or something that is never said.
  kBusy,
};

struct Refusal {
  RefusalReason why = RefusalReason::kNotThere;
  std::string reason;
  bool operator==(const Refusal&) const = default;
};

struct TransferAnswer {
  RequestKind kind = RequestKind::kAskSnapshot;
  StateId state{};  // Of the snapshot.
  Commit commit{};  // Of the sum.
  // To be fetched; of kAskSnapshot none.
  std::uint64_t bytes = 0;
  std::uint32_t chunk_bytes = 1;  // The last chunk may be shorter.
  // Of a snapshot's chunks, in their order.
  std::vector<std::uint64_t> digests{};
  bool operator==(const TransferAnswer&) const = default;
};

struct ChunkRequest {
  std::uint64_t place = 0;  // Of its first byte.
  bool operator==(const ChunkRequest&) const = default;
};

struct Chunk {
  std::uint64_t place = 0;
  std::uint64_t digest = 0;
  std::string_view bytes;  // The payload's.
  bool operator==(const Chunk&) const = default;
};

std::string bytes_of(const TransferRequest& request);
std::string bytes_of(const Refusal& refusal);  // A long reason is cut.
std::string bytes_of(const TransferAnswer& answer);
std::string bytes_of(const ChunkRequest& want);
std::string bytes_of(const Chunk& chunk);

// A failure, kPeerMismatch, says what was expected and found.
Result<TransferRequest> request_of(std::string_view bytes);
Result<Refusal> refusal_of(std::string_view bytes);
Result<TransferAnswer> answer_of(std::string_view bytes);
Result<ChunkRequest> chunk_request_of(std::string_view bytes);
Result<Chunk> chunk_of(std::string_view bytes);

}  // namespace sherd::ft::transfer
