"""python -m scaling bisect: which node makes the others wait, and what would its removal bring?"""

NAME = "scaling bisect"  # how its errors begin
