"""Pages to look at: reports as one file, live pages, figures for papers; all are made of `mileage.charts`."""
