// What ends the tokenizing of a request's text before it is done: a client that left, a server that ends, a
// wait that was too long, more tokens than the request may have.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "serve/api/routes.h"

namespace fathom::serve {

inline constexpr size_t kAnyNumTokens = std::numeric_limits<size_t>::max();

// `context` and the exchange of `call` must outlive it.
EncodeCheck make_encode_check(const ApiContext& context, const ApiCall& call, size_t tokens_max);

// Answers a request whose text was not tokenized, unless its client has left. `param` is the field with the
// text.
void answer_encode_error(const ApiContext& context, const ApiCall& call, const std::string& param,
                         const Status& status);

}  // namespace fathom::serve
