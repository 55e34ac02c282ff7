// SPDX-License-Identifier: Apache-2.0
//
// How ranks exchange bytes: by messages, or through memory that they share.
#pragma once

namespace sherd {

// How ranks exchange parameters and gradients.
enum class ExchangeKind {
  // As the environment variable SHERD_EXCHANGE says (auto, collective, shm or hierarchical).
  // If it is not set: kSharedMemory if all ranks are on one host, kHierarchical on several hosts of
  // which at least one has more than one rank, kCollective otherwise and for modules on a GPU.
  kAuto,
  kCollective,  // Messages over a c10d process group. Works for any ranks.
  // Memory that all ranks map; they must run on one host. Every unit lies there whole, once, and
  // nothing is gathered. Resharding frees nothing then, so any byte budget is kept.
  kSharedMemory,
  // For several hosts. A host has one copy of each unit that is whole there, and receives each byte
  // of it once; gradients are summed on a host before they leave it. Since sums are made host by
  // host, their bits depend on which ranks share a host.
  kHierarchical,
};

}  // namespace sherd
