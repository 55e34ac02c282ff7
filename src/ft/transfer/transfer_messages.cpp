// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/transfer_messages.h"

#include <algorithm>
#include <bit>
#include <utility>
#include "base/check.h"
#include "ft/wire/fields.h"

namespace sherd::ft::wire {

using namespace transfer;  // NOLINT(google-build-using-namespace): its own.

namespace {

void version(FieldWriter& io) { io.out.u16(kTransferVersion); }
void version(FieldReader& io) {
  const std::uint16_t found = io.in.u16("the version");
  if (found != kTransferVersion) {
    io.in.fail(str("expected version ", kTransferVersion, ", found ", found));
  }
}

void digests(FieldWriter& io, const TransferAnswer& answer) {
  io.out.count(answer.digests.size());
  for (const auto digest : answer.digests) {
    io.out.u64(digest);
  }
}

// One digest for each chunk, if the answer has digests.
void digests(FieldReader& io, TransferAnswer& answer) {
  auto& in = io.in;
  if (answer.chunk_bytes == 0 || answer.chunk_bytes > kChunkBytesMax) {
    in.fail(
        str("expected chunks of 1 to ", kChunkBytesMax, " bytes, found ",
            answer.chunk_bytes));
  }
  const auto count =
      in.count("digests", {.elements_max = kDigestsMax, .element_bytes = 8});
  for (std::size_t i = 0; i < count; ++i) {
    answer.digests.push_back(in.u64("a digest"));
  }
  if (!in.ok()) {
    return;  // chunk_bytes may be 0.
  }
  const auto expected = answer.kind == RequestKind::kFetchSnapshot
      ? chunks_of(answer.bytes, answer.chunk_bytes)
      : 0;
  if (count != expected) {
    in.fail(
        str("expected the digests of ", expected, " chunks, found ", count));
  }
}

}  // namespace

void fields(auto& io, Of<TransferRequest> auto& request) {
  version(io);
  io.choice("what is asked for", request.kind, RequestKind::kFetchSum);
  io.number("a run", request.run);
  io.number("a rank", request.shard_rank);
  fields(io, request.state);
  io.number("a time to wait", request.wait_ms_max);
}

void fields(auto& io, Of<TransferAnswer> auto& answer) {
  version(io);
  io.choice("what is answered", answer.kind, RequestKind::kFetchSum);
  fields(io, answer.state);
  fields(io, answer.commit);
  io.number("a length", answer.bytes);
  io.number("the length of a chunk", answer.chunk_bytes);
  digests(io, answer);
}

}  // namespace sherd::ft::wire

namespace sherd::ft::transfer {
namespace {

// A state has about this many chunks if it is not large, so that they arrive often under a low rate
// limit.
constexpr std::uint64_t kChunksOfState = 64;
constexpr std::uint64_t kChunkBytesMin = 4096;

}  // namespace

std::uint32_t chunk_bytes_of_state(std::uint64_t bytes) {
  auto chunk = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      std::bit_ceil(bytes / kChunksOfState), kChunkBytesMin,
      kUsualChunkBytesMax));
  while (chunk < kChunkBytesMax && chunks_of(bytes, chunk) > kDigestsMax) {
    chunk *= 2;
  }
  return chunk;
}

std::string bytes_of(const TransferRequest& request) {
  return wire::encoded(request);
}
std::string bytes_of(const TransferAnswer& answer) {
  return wire::encoded(answer);
}

std::string chunk_request(std::uint64_t place) {
  net::ByteWriter out;
  out.u64(place);
  return out.take();
}

std::string bytes_of(const Refusal& refusal) {
  net::ByteWriter out;
  out.u8(static_cast<std::uint8_t>(refusal.why));
  out.text(std::string_view(refusal.reason).substr(0, kReasonBytesMax));
  return out.take();
}

std::string bytes_of(const Chunk& chunk) {
  net::ByteWriter out;
  out.u64(chunk.place);
  out.u64(chunk.digest);
  out.raw(chunk.bytes);
  return out.take();
}

Result<TransferRequest> request_of(std::string_view bytes) {
  return wire::decoded<TransferRequest>(bytes, "a request of a transfer");
}
Result<TransferAnswer> answer_of(std::string_view bytes) {
  return wire::decoded<TransferAnswer>(bytes, "an answer of a transfer");
}

Result<std::uint64_t> chunk_request_of(std::string_view bytes) {
  net::ByteReader in(bytes);
  const std::uint64_t place = in.u64("a place");
  return in.finish("a wish of a transfer", place);
}

Result<Refusal> refusal_of(std::string_view bytes) {
  wire::FieldReader io{net::ByteReader(bytes)};
  Refusal refusal;
  io.choice("why it is refused", refusal.why, RefusalReason::kBusy);
  refusal.reason = io.in.text("a reason", kReasonBytesMax);
  return io.in.finish("a refusal of a transfer", std::move(refusal));
}

Result<Chunk> chunk_of(std::string_view bytes) {
  net::ByteReader in(bytes);
  Chunk chunk;
  chunk.place = in.u64("a place");
  chunk.digest = in.u64("a digest");
  if (in.left() > kChunkBytesMax) {
    in.fail(
        str("expected a chunk of at most ", kChunkBytesMax, " bytes, found ",
            in.left()));
  }
  chunk.bytes = in.raw("a chunk", in.ok() ? in.left() : 0);
  return in.finish("a chunk of a transfer", chunk);
}

}  // namespace sherd::ft::transfer
