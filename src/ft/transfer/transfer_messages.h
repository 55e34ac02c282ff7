// SPDX-License-Identifier: Apache-2.0
//
// The wire format between a TransferServer and a fetch, as payloads of net's frames. Each
// connection carries one request:
//
//   fetch                          server
//   TransferRequest                    ->
//                             <-   Waiting, while a snapshot is to be offered
//                             <-   TransferAnswer, or Refusal at any time
//   kChunkRequest, kWindow at most ->
//                             <-   Chunk, in the order of the requests
//                             <-   Waiting, while the limit on states' rate holds up a chunk
//
// The answer for a snapshot has the digests of all its chunks, which a fetch from several donors
// compares before it takes chunks from all. If a message has another version, only that version can
// be read; a Refusal is the same in all versions. Thread rule: values and pure functions.
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
// The limit of a chunk, except in states of more than kDigestsMax such chunks.
constexpr std::size_t kUsualChunkBytesMax = std::size_t{1} << 20U;
constexpr std::size_t kChunkBytesMax = std::size_t{64} << 20U;
// How many chunks may be requested but not received yet, which hides the round trip.
constexpr std::size_t kWindow = 4;
// The limit of digests in an answer: 128 GiB in usual chunks, 8 TiB in the longest ones.
constexpr std::size_t kDigestsMax = std::size_t{1} << 17U;
// The limit of a frame's payload: a chunk with its place and digest, or an answer.
constexpr std::size_t kPayloadBytesMax = kChunkBytesMax + 1024;
constexpr std::size_t kReasonBytesMax = 4096;

constexpr std::uint64_t chunks_of(
    std::uint64_t bytes, std::uint32_t chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes == 0 ? 0 : 1);
}
// The length of the chunks of a state with this many bytes, so that an answer has room for their
// digests, unless even the longest ones are too many. It depends on nothing else, because donors
// whose chunks differ in length cannot be compared.
std::uint32_t chunk_bytes_of_state(std::uint64_t bytes);

enum class TransferFrameType : std::uint16_t {
  kRequest = 1,
  kWaiting,
  kRefusal,
  kAnswer,
  kChunkRequest,
  kChunk,
};

enum class RequestKind : std::uint8_t {
  kAskSnapshot,    // Answered with the state of the snapshot.
  kFetchSnapshot,  // The snapshot of `state`.
  kFetchSum,       // `state` is its base.
};

struct TransferRequest {
  RequestKind kind = RequestKind::kAskSnapshot;
  std::uint64_t run = 0;
  std::uint32_t shard_rank = 0;
  StateId state;
  // How long the server may wait until it has what is requested.
  std::uint32_t wait_ms_max = 0;
  bool operator==(const TransferRequest&) const = default;
};

enum class RefusalReason : std::uint8_t {
  kNotThere,  // The server does not have it.
  kMismatch,  // The run, rank or version differs, or the message is invalid.
  kBusy,
};

struct Refusal {
  RefusalReason why = RefusalReason::kNotThere;
  std::string reason;
  bool operator==(const Refusal&) const = default;
};

struct TransferAnswer {
  RequestKind kind = RequestKind::kAskSnapshot;
  StateId state{};  // The state of the snapshot.
  Commit commit{};  // The commit of the sum.
  // The size of the bytes; 0 for kAskSnapshot.
  std::uint64_t bytes = 0;
  std::uint32_t chunk_bytes = 1;  // The last chunk may be shorter.
  // For a snapshot: one digest for each chunk.
  std::vector<std::uint64_t> digests{};
  bool operator==(const TransferAnswer&) const = default;
};

struct Chunk {
  std::uint64_t place = 0;  // The offset of its first byte.
  std::uint64_t digest = 0;
  std::string_view bytes;  // Points into the payload.
  bool operator==(const Chunk&) const = default;
};

std::string bytes_of(const TransferRequest& request);
std::string bytes_of(const Refusal& refusal);  // A long reason is truncated.
std::string bytes_of(const TransferAnswer& answer);
std::string chunk_request(std::uint64_t place);
std::string bytes_of(const Chunk& chunk);

// Fails with kPeerMismatch, saying what was expected and found.
Result<TransferRequest> request_of(std::string_view bytes);
Result<Refusal> refusal_of(std::string_view bytes);
Result<TransferAnswer> answer_of(std::string_view bytes);
Result<std::uint64_t> chunk_request_of(std::string_view bytes);
Result<Chunk> chunk_of(std::string_view bytes);

}  // namespace sherd::ft::transfer
