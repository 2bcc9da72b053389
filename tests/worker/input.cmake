# Tests of sparrow::input.

sparrow_test(worker/line_reader sparrow::input ZLIB::ZLIB)
sparrow_test(worker/number_parser sparrow::input)
sparrow_test(worker/batch_reader sparrow::input ZLIB::ZLIB)
sparrow_test(worker/delimited_parser sparrow::input ZLIB::ZLIB)
sparrow_test(worker/slot_parser sparrow::input ZLIB::ZLIB)
sparrow_test(worker/npy_source sparrow::input ZLIB::ZLIB)
sparrow_test(worker/parse_threads sparrow::input ZLIB::ZLIB)
sparrow_test(worker/input_fuzz sparrow::input ZLIB::ZLIB)
sparrow_test(worker/input_real_data sparrow::input ZLIB::ZLIB)
sparrow_test(worker/data_check sparrow::input ZLIB::ZLIB)
