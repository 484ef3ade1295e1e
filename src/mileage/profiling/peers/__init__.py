"""Other libraries doing the jobs of `mileage bench`, each the way it is fastest.

These modules run in the interpreter that has the libraries, which need not have what mileage needs: they import the
standard library, NumPy, one another, and a library only where its arm is built.
"""
