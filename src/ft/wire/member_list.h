// SPDX-License-Identifier: Apache-2.0
//
// Members with their samples as bytes. The coordinator gives out the lowest free samples in the order
// of the members, so that all of them together are few ranges, cut into equal pieces: that is what is
// written, and where it does not hold, the ranges of each. Who they are takes 12 bytes each, and none
// where the reader knows it. Thread rule: pure functions.
#pragma once

#include <vector>
#include "ft/protocol/messages.h"
#include "ft/wire/fields.h"

namespace sherd::ft::wire {

bool are_same_replicas(
    const std::vector<Member>& one, const std::vector<Member>& other);

void member_fields(FieldWriter& io, const std::vector<Member>& members);
void member_fields(FieldReader& io, std::vector<Member>& members);

// Without who they are: a reader replaces the samples of the members that are there.
void sample_fields(FieldWriter& io, const std::vector<Member>& members);
void sample_fields(FieldReader& io, std::vector<Member>& members);

}  // namespace sherd::ft::wire
