"""Pages to look at: reports as one file, the live pages, figures for papers; all made of the charts of `mileage.charts`."""
