#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::filesystem::create_directories(root + "/sub");
    Write(root + "/b.tsv");
    Write(root + "/a.tsv");
    Write(root + "/sub/c.tsv");
    Write(directory.File("secret"));
  }
  static void Write(const std::string& path) { std::ofstream(path) << "123456789"; }

  TemporaryDirectory directory;
  const std::string root = std::filesystem::canonical(directory.path()).string() + "/root";
};

TEST_F(FileTest, AFileIsReadWholeAndErrorsNameThePath) {
  EXPECT_EQ(*ReadFile(root + "/a.tsv"), "123456789");
  const absl::Status missing = ReadFile(root + "/none").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr(root + "/none"));
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadFile(root).status())) << "a directory";
}

TEST_F(FileTest, TheDigestIsZlibsCrc32) {
  const auto digest = DigestFile(root + "/a.tsv");
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(digest->bytes, 9u);
  EXPECT_EQ(digest->crc32, 0xcbf43926u) << "the check value of CRC-32 for 123456789";
}

TEST_F(FileTest, AnAtomicWriteReplacesAndLeavesNoTemporary) {
  ASSERT_TRUE(WriteFileAtomically(root + "/a.tsv", "new").ok());
  EXPECT_EQ(*ReadFile(root + "/a.tsv"), "new");
  EXPECT_FALSE(std::filesystem::exists(root + "/a.tsv.tmp"));
  EXPECT_TRUE(absl::IsNotFound(WriteFileAtomically(root + "/none/x", "new")));
}

TEST_F(FileTest, AnAtomicWriteGoesThroughALinkAndLeavesItThere) {
  std::filesystem::create_symlink("a.tsv", root + "/link");
  std::filesystem::create_symlink("sub/new", root + "/dangling");
  for (const auto& [link, target] : {std::pair{"/link", "/a.tsv"}, std::pair{"/dangling", "/sub/new"}}) {
    EXPECT_TRUE(CheckWritable("--json", root + link).ok());
    ASSERT_TRUE(WriteFileAtomically(root + link, "new").ok());
    EXPECT_TRUE(std::filesystem::is_symlink(root + link));
    EXPECT_EQ(*ReadFile(root + target), "new");
  }
}

TEST_F(FileTest, AnAtomicWriteLeavesWhatIsNoFileInItsPlaceAndWritesToIt) {
  const std::string pipe = root + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int fd = open(pipe.c_str(), O_RDWR);  // Both ends, so that nobody waits.
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(CheckWritable("--json", pipe).ok());
  ASSERT_TRUE(WriteFileAtomically(pipe, "new").ok());
  char got[4] = {};
  EXPECT_EQ(read(fd, got, 3), 3);
  EXPECT_STREQ(got, "new");
  close(fd);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));

  // The device itself is not at stake, whoever runs this.
  std::filesystem::create_symlink("/dev/full", root + "/full");
  const absl::Status full = WriteFileAtomically(root + "/full", "new");
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr(root + "/full: cannot write"));
  EXPECT_TRUE(std::filesystem::is_symlink(root + "/full"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST_F(FileTest, WhetherAFileCanBeWrittenIsKnownBefore) {
  EXPECT_TRUE(CheckWritable("--json", "").ok());
  EXPECT_TRUE(CheckWritable("--json", root + "/new").ok());
  EXPECT_TRUE(CheckWritable("--json", root + "/a.tsv").ok());
  for (const std::string& path : {root, root + "/none/x"}) {
    const absl::Status status = CheckWritable("--json", path);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--json"));
  }
}

TEST_F(FileTest, AProbeIsANewFileInADirectoryThatCanBeWritten) {
  const auto first = WriteProbe(root + "/sub");
  const auto second = WriteProbe(root + "/sub");
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_NE(*first, *second);
  EXPECT_EQ(std::filesystem::path(*first).parent_path(), root + "/sub");
  EXPECT_NE(*ReadFile(*first), "");
  // In /proc nobody may make a file, not even root.
  for (const std::string& directory : {root + "/none", root + "/a.tsv", std::string("/proc/self")}) {
    const absl::Status status = WriteProbe(directory).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory + ": cannot write a file there: "));
  }
}

TEST_F(FileTest, DirectoriesAreMadeWithTheirParentsAndMayBeThere) {
  EXPECT_TRUE(MakeDirectories(root + "/x/y/z").ok());
  EXPECT_TRUE(MakeDirectories(root + "/x/y/z").ok());
  EXPECT_TRUE(std::filesystem::is_directory(root + "/x/y/z"));
  EXPECT_FALSE(MakeDirectories(root + "/a.tsv/x").ok());
}

TEST_F(FileTest, PathsUnderTheRootResolve) {
  EXPECT_EQ(*ResolveUnder(root, "a.tsv"), root + "/a.tsv");
  EXPECT_EQ(*ResolveUnder(root, "sub/../a.tsv"), root + "/a.tsv");
  EXPECT_EQ(*ResolveUnder(root, root + "/sub/c.tsv"), root + "/sub/c.tsv");
  EXPECT_EQ(*ResolveUnder(root, "not/yet/there"), root + "/not/yet/there");
  EXPECT_EQ(*ResolveUnder(root, "."), root);
}

TEST_F(FileTest, PathsOutsideTheRootAreRefusedNamingBoth) {
  std::filesystem::create_symlink(directory.path(), root + "/up");
  std::filesystem::create_symlink(directory.File("secret"), root + "/link.tsv");
  std::filesystem::create_directory(root + "-beside");
  for (const std::string& path : {std::string("../secret"), std::string("sub/../../secret"), directory.File("secret"),
                                  std::string("up/secret"), std::string("link.tsv"), std::string("/etc/passwd"),
                                  root + "-beside/x", std::string("../root-beside/x"), std::string("up/new")}) {
    const absl::Status status = ResolveUnder(root, path).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << path << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(root));
  }
}

TEST(File, ALinkThatLeadsOutIsNamedWithWhereItLeads) {
  TemporaryDirectory root, other;
  std::filesystem::create_directory(root.File("sub"));
  std::filesystem::create_directory_symlink(other.path(), root.File("sub/link"));
  const absl::Status status = ResolveUnder(root.path(), "sub/link/a.tsv").status();
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(": " + root.File("sub/link") + " is a link to " + other.path()));
  EXPECT_THAT(std::string(ResolveUnder(root.path(), "../x").status().message()), testing::Not(HasSubstr("is a link")));
}

TEST(File, ARootIsADirectoryOrCanBecomeOne) {
  TemporaryDirectory root;
  ASSERT_TRUE(WriteFileAtomically(root.File("file"), "x").ok());
  EXPECT_TRUE(CheckDirectory("--r", root.path()).ok());
  EXPECT_TRUE(absl::IsNotFound(CheckDirectory("--r", root.File("none"))));
  EXPECT_TRUE(CheckDirectoryOrNew("--r", root.File("none/below")).ok());
  EXPECT_FALSE(std::filesystem::exists(root.File("none"))) << "is only checked";
  for (const absl::Status& status :
       {CheckDirectory("--r", root.File("file")), CheckDirectoryOrNew("--r", root.File("file")),
        CheckDirectoryOrNew("--r", root.File("file/below/it"))}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("--r " + root.path()));
    EXPECT_THAT(std::string(status.message()), HasSubstr("is a file"));
  }
}

TEST_F(FileTest, PatternsMatchSortedAndStayInside) {
  EXPECT_THAT(*MatchFiles(root, "*.tsv"), ElementsAre(root + "/a.tsv", root + "/b.tsv"));
  EXPECT_THAT(*MatchFiles(root, "?.tsv"), ElementsAre(root + "/a.tsv", root + "/b.tsv"));
  EXPECT_THAT(*MatchFiles(root, "*/c.tsv"), ElementsAre(root + "/sub/c.tsv"));
  EXPECT_THAT(*MatchFiles(root, "a.tsv"), ElementsAre(root + "/a.tsv"));
  EXPECT_TRUE(absl::IsNotFound(MatchFiles(root, "*.csv").status()));
  EXPECT_TRUE(absl::IsNotFound(MatchFiles(root, "none.tsv").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(MatchFiles(root, "../secret").status()));
  EXPECT_FALSE(MatchFiles(root, "../*").ok());
}

}  // namespace
}  // namespace sparrow
