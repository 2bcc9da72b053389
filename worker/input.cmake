# sparrow::input: files -> rows or tokens -> batches. Knows nothing of servers and models.

sparrow_library(input
  SOURCES bad_rows.cc batch_builder.cc batch_reader.cc byte_source.cc column_statistics.cc data_check.cc data_report.cc delimited_parser.cc delimited_schema.cc dense_transform.cc distinct_counter.cc line_parser.cc
          line_reader.cc npy_source.cc number_parser.cc row_range.cc row_source.cc slot_parser.cc source_files.cc source_tokenizer.cc text_source.cc
          token_batches.cc token_check.cc token_shards.cc token_windows.cc
  DEPS sparrow::base sparrow::proto
  PRIVATE_DEPS PkgConfig::ISAL nlohmann_json::nlohmann_json)
