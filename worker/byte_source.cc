#include "worker/byte_source.h"

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr size_t kInputBytes = 1 << 16;
constexpr absl::string_view kGzipMagic("\x1f\x8b", 2);

struct Magic {
  absl::string_view bytes;
  const char* name;
};
// What people have beside text and gzip; none of these bytes begins a text.
constexpr Magic kOtherFormats[] = {{absl::string_view("\x28\xb5\x2f\xfd", 4), "zstd-compressed"},
                                   {absl::string_view("\xfd"
                                                      "7zXZ\0",
                                                      6),
                                    "xz-compressed"},
                                   {absl::string_view("PK\x03\x04", 4), "a zip archive"},
                                   {absl::string_view("PAR1\x15", 5), "Parquet"},
                                   {absl::string_view("\x93NUMPY", 6), "a .npy file (is the format dlrm_npy?)"},
                                   {absl::string_view("\xff\xfe", 2), "UTF-16 text"},
                                   {absl::string_view("\xfe\xff", 2), "UTF-16 text"}};

// ISA-L's error as words.
const char* InflateError(int error) {
  switch (error) {
    case ISAL_INVALID_WRAPPER:
      return "what follows is no gzip stream";
    case ISAL_UNSUPPORTED_METHOD:
      return "the compression method is not deflate";
    case ISAL_INCORRECT_CHECKSUM:
      return "the checksum or the length is wrong";
    default:
      return "the gzip stream is damaged";
  }
}

}  // namespace

// By ISA-L, which inflates more than twice as fast as zlib: zlib alone takes all the time that parsing 200 MB/s may
// take.
struct ByteSource::Gzip {
  Gzip() {
    isal_inflate_init(&state);
    StartMember();
  }

  // Keeps the input that is left.
  void StartMember() {
    isal_inflate_reset(&state);
    state.crc_flag = ISAL_GZIP_NO_HDR_VER;  // The header by itself: isal_inflate loses one that is cut by the buffer.
    isal_gzip_header_init(&header);
    part = Part::kBetween;
  }

  enum class Part { kBetween, kHeader, kBody };

  inflate_state state;  // Its next_in and avail_in are what is left of `input`.
  isal_gzip_header header;
  Part part = Part::kBetween;  // kBetween: before the first byte of a member.
  bool drained = false;        // The file has ended.
  uint8_t input[kInputBytes];
};

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It changes nothing for regular files.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat", path);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a directory, expected a file; name its files by \"", path, "/*\""));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not a regular file; each epoch reads it again, so copy it into one"));
  }
  char start[8];
  const ssize_t got = pread(fd, start, sizeof(start), 0);
  if (got < 0) return ErrnoStatus(errno, "read", path);
  const absl::string_view magic(start, static_cast<size_t>(got));
  const bool gzip = absl::StartsWith(magic, kGzipMagic);
  if (!gzip && absl::EndsWith(path, ".gz")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is named .gz but ",
                                                   got == 0 ? "is empty" : "does not begin with gzip's magic number",
                                                   "; rename it if it is plain text"));
  }
  for (const Magic& other : kOtherFormats) {
    if (absl::StartsWith(magic, other.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is ", other.name, "; expected ASCII or UTF-8 text, plain or gzip"));
    }
  }
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);  // A hint: its failure changes nothing.
  std::move(close_fd).Cancel();
  return std::unique_ptr<ByteSource>(new ByteSource(path, fd, gzip));
}

ByteSource::ByteSource(std::string path, int fd, bool gzip)
    : path_(std::move(path)), fd_(fd), gzip_(gzip ? std::make_unique<Gzip>() : nullptr) {}

ByteSource::~ByteSource() { close(fd_); }

absl::StatusOr<size_t> ByteSource::Read(char* to, size_t size) {
  DCHECK(size > 0);
  return gzip_ == nullptr ? ReadFd(to, size) : Inflate(to, size);
}

absl::StatusOr<size_t> ByteSource::ReadFd(char* to, size_t size) {
  for (;;) {
    const ssize_t got = read(fd_, to, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read", path_);
    file_bytes_read_ += static_cast<uint64_t>(got);
    return static_cast<size_t>(got);
  }
}

absl::Status ByteSource::FillGzip() {
  if (gzip_->state.avail_in != 0 || gzip_->drained) return absl::OkStatus();
  ASSIGN_OR_RETURN(const size_t got, ReadFd(reinterpret_cast<char*>(gzip_->input), kInputBytes));
  gzip_->state.next_in = gzip_->input;
  gzip_->state.avail_in = static_cast<uint32_t>(got);
  gzip_->drained = got == 0;
  return absl::OkStatus();
}

absl::Status ByteSource::ReadGzipHeader() {
  gzip_->part = Gzip::Part::kHeader;
  const int result = isal_read_gzip_header(&gzip_->state, &gzip_->header);
  if (result == ISAL_DECOMP_OK) {
    gzip_->part = Gzip::Part::kBody;
  } else if (result != ISAL_END_INPUT) {
    return Damaged(InflateError(result));
  } else if (gzip_->drained) {
    return Damaged("the gzip stream is cut off");
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ByteSource::Inflate(char* to, size_t size) {
  inflate_state& state = gzip_->state;
  size = std::min<size_t>(size, 1 << 30);  // ISA-L counts in 32 bits.
  state.next_out = reinterpret_cast<uint8_t*>(to);
  state.avail_out = static_cast<uint32_t>(size);
  while (state.avail_out == size) {
    RETURN_IF_ERROR(FillGzip());
    if (gzip_->part == Gzip::Part::kBetween && state.avail_in == 0) return 0;
    if (gzip_->part != Gzip::Part::kBody) {
      RETURN_IF_ERROR(ReadGzipHeader());
      continue;
    }
    // Without input too: ISA-L holds some of what it has taken, and hands it out as there is room.
    const uint32_t input_before = state.avail_in;
    const int result = isal_inflate(&state);
#ifdef __AVX__
    // Its CRC leaves the upper halves of the vector registers in use, and then every SSE instruction of the parser
    // (those of libm's log) is several times slower.
    _mm256_zeroupper();
#endif
    if (result < 0) return Damaged(InflateError(result));
    if (state.block_state == ISAL_BLOCK_FINISH) {
      gzip_->StartMember();
    } else if (state.avail_out == size && state.avail_in == input_before && (input_before != 0 || gzip_->drained)) {
      return Damaged(gzip_->drained ? "the gzip stream is cut off" : "the gzip stream is damaged");
    }
  }
  return size - state.avail_out;
}

absl::Status ByteSource::Damaged(const char* what) const {
  return absl::DataLossError(absl::StrCat(path_, ": cannot decompress: ", what, ", near byte ",
                                          file_bytes_read_ - gzip_->state.avail_in,
                                          " of the file; check it with gzip -t and copy it again"));
}

}  // namespace sparrow
