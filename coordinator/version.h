#ifndef SPARROW_COORDINATOR_VERSION_H_
#define SPARROW_COORDINATOR_VERSION_H_

namespace sparrow {

// Of the programs and of the protocol between them. A member of another version is refused when it registers.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_VERSION_H_
