-- Put after every script, whose body is the function `main`.
local done, answer = pcall(function()
  begin()
  return main()
end)
if done then
  return answer
end
if type(answer) == 'table' then
  -- A refusal, or an error of the server, such as OOM.
  return answer.refusal or { err = answer.err }
end
return { err = 'SCRIPTERROR ' .. tostring(answer) }
