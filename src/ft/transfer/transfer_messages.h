// SPDX-License-Identifier: Apache-2.0
//
// What is said between a TransferServer and a fetch, as payloads of net's frames.
// One connection carries one request:
//
//   fetch                          server
//   Request                    ->
//                             <-   Waiting, while a snapshot is to be offered
//                             <-   Answer, or Refusal at any time
//   WantChunk, kWindow at most ->
//                             <-   Chunk, in the order of the asking
//   WantWhole, after all       ->
//                             <-   Whole, the digest of all bytes
//
// The other fields of a message that begins with another version are unknown; a
// Refusal is the same in all. Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include "base/status.h"
#include "ft/protocol/messages.h"

namespace sherd::ft::transfer {

constexpr std::uint16_t kTransferVersion = 1;
constexpr std::size_t kChunkBytesMax = std::size_t{1} << 20U;
// Chunks that are asked for and have not come: hides the way there and back.
constexpr std::size_t kWindow = 4;
// Of a frame's payload: a chunk with its place and digest.
constexpr std::size_t kPayloadBytesMax = kChunkBytesMax + 16;
constexpr std::size_t kReasonBytesMax = 4096;

enum class FrameType : std::uint16_t {
  kRequest = 1,
  kWaiting,
  kRefusal,
  kAnswer,
  kWantChunk,
  kChunk,
  kWantWhole,
  kWhole,
};

enum class Kind : std::uint8_t {
  kAskSnapshot,    // Answered by the state that it is of.
  kFetchSnapshot,  // Of `state`.
  kFetchSum,       // With `state` as its base.
};

struct Request {
  Kind kind = Kind::kAskSnapshot;
  std::uint64_t run = 0;
  std::uint32_t shard_rank = 0;
  StateId state;
  std::uint32_t wait_ms_max = 0;  // For a snapshot.
  bool operator==(const Request&) const = default;
};

enum class Why : std::uint8_t {
  kNotThere,  // What was asked for.
  kMismatch,  // Run, rank, version, or something that is never said.
  kBusy,
};

struct Refusal {
  Why why = Why::kNotThere;
  std::string reason;
  bool operator==(const Refusal&) const = default;
};

struct Answer {
  Kind kind = Kind::kAskSnapshot;
  StateId state{};  // Of the snapshot.
  Commit commit{};  // Of the sum.
  // To be fetched; of kAskSnapshot none.
  std::uint64_t bytes = 0;
  std::uint32_t chunk_bytes = 1;  // The last chunk may be shorter.
  bool operator==(const Answer&) const = default;
};

struct WantChunk {
  std::uint64_t place = 0;  // Of its first byte.
  bool operator==(const WantChunk&) const = default;
};

struct Chunk {
  std::uint64_t place = 0;
  std::uint64_t digest = 0;
  std::string_view bytes;  // The payload's.
  bool operator==(const Chunk&) const = default;
};

struct Whole {
  std::uint64_t digest = 0;
  bool operator==(const Whole&) const = default;
};

std::string bytes_of(const Request& request);
std::string bytes_of(const Refusal& refusal);  // A long reason is cut.
std::string bytes_of(const Answer& answer);
std::string bytes_of(const WantChunk& want);
std::string bytes_of(const Chunk& chunk);
std::string bytes_of(const Whole& whole);

// A failure, kPeerMismatch, says what was expected and found.
Result<Request> request_of(std::string_view bytes);
Result<Refusal> refusal_of(std::string_view bytes);
Result<Answer> answer_of(std::string_view bytes);
Result<WantChunk> want_chunk_of(std::string_view bytes);
Result<Chunk> chunk_of(std::string_view bytes);
Result<Whole> whole_of(std::string_view bytes);

}  // namespace sherd::ft::transfer
