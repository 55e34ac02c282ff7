// SPDX-License-Identifier: Apache-2.0
//
// How ranks exchange bytes: by messages, or through memory they share.
#pragma once

namespace sherd {

// How ranks exchange parameters and gradients.
enum class ExchangeKind {
  // What the environment variable SHERD_EXCHANGE says (auto, collective, shm
  // or hierarchical); else what suits the hosts: kSharedMemory on one,
  // kHierarchical where some of several have more than one rank.
  kAuto,
  kCollective,  // Messages over a c10d process group: any ranks.
  // Memory that all ranks map, who must run on one host: every unit lies there
  // whole, once, and nothing is gathered. Resharding has nothing to free then,
  // so that any byte budget is met.
  kSharedMemory,
  // Several hosts: a host has one copy of each unit that is whole there, and
  // receives every byte of it once; gradients leave a host as their sum. Sums
  // are made host by host, so bits depend on which ranks share one.
  kHierarchical,
};

}  // namespace sherd
