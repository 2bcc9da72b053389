# Filled with the input half.
