// Names of the finish reasons.
#include "engine/request.h"

namespace fathom {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kInsufficientResources:
      return "insufficient_resources";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

}  // namespace fathom
